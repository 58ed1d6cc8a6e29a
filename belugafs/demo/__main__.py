"""``python -m belugafs.demo``: the same as ``belugafs demo``."""

from belugafs.demo.cli import demo_command

if __name__ == "__main__":
    demo_command(prog_name="belugafs demo")
