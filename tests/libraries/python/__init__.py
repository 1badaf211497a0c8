"""The scripts in Python: each in the environment of tools/libraries.sh, which has the libraries."""
