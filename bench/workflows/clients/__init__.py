"""Each system's workers (`work`) and who asks them for jobs (`drive`). The peers' run in .venv-peers, without ours."""
