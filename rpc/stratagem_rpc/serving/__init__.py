"""The parts that server processes of every kind share; clients do not need them."""
