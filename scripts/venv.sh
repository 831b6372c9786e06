# Sourced by the other scripts, from the root of the repository: makes .venv and installs mxspec with all it needs.
# Does nothing when the project's requirements have not changed since the last time. PYTHON names another interpreter.

venv_stamp=.venv/mxspec.stamp
venv_inputs=$(cat pyproject.toml constraints.txt CMakeLists.txt | cksum)
if [[ ! -f $venv_stamp || $(<"$venv_stamp") != "$venv_inputs" ]]; then
  printf 'Installing into .venv (torch is the large one)...\n' >&2
  "${PYTHON:-python3}" -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1' >&2
  .venv/bin/python -m pip install --quiet --constraint constraints.txt --group dev --editable '.[compile,evaluate]' >&2
  printf '%s' "$venv_inputs" >"$venv_stamp"
fi
export PATH="$PWD/.venv/bin:$PATH"
