"""The protected half of `StrategyExtended`, which strategies override."""
