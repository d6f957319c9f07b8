"""`python -m agent_ckpt` is the `agent-ckpt` command."""

from agent_ckpt.cli.app import main

main()
