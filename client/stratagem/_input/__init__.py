"""From the user's dataset to what each replica gets in each step."""
