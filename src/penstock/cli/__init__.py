"""The command line: it prints the values of `penstock.inspect`, and asks jobs for something."""
