"""The settings of processes: flags take precedence over environment, TF_CONFIG and file."""
