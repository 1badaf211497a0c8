"""`python -m holdmq` is the command `holdmq`."""

from holdmq.cli import main

if __name__ == "__main__":
    main(prog_name="holdmq")
