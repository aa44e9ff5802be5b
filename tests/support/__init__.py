"""What tests share. Scripts that a stage runs find these modules at the top level, too."""
