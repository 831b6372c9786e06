# Sourced by the other scripts, from the root of the repository: makes .venv and installs mxspec with all it needs, and
# installs mxspec again where its native sources or the names of its modules have changed. PYTHON names another
# interpreter.

venv_requirements=$(cat pyproject.toml constraints.txt CMakeLists.txt | cksum)
venv_modules=$(find formats recipes compile runtime evaluate serve -name '*.py' | LC_ALL=C sort | cksum)
venv_native=$(find formats runtime -name '*.cpp' -o -name '*.h' | LC_ALL=C sort | xargs cat | cksum)
venv_sources="$venv_modules $venv_native"

venv_changed() { [[ ! -f .venv/$1.stamp || $(<".venv/$1.stamp") != "$2" ]]; }
venv_pip() { .venv/bin/python -m pip "$1" --quiet --disable-pip-version-check "${@:2}" >&2; }

if venv_changed requirements "$venv_requirements"; then
  printf 'Installing into .venv (torch is the large one)...\n' >&2
  [[ -x .venv/bin/python ]] || "${PYTHON:-python3}" -m venv .venv
  venv_pip install --upgrade 'pip>=25.1'
  venv_pip install --constraint constraints.txt --group dev --editable '.[compile,evaluate,grammar,ray]'
  printf '%s' "$venv_requirements" >.venv/requirements.stamp
  printf '%s' "$venv_sources" >.venv/sources.stamp
elif venv_changed sources "$venv_sources"; then
  printf 'Building mxspec again...\n' >&2
  venv_pip install --no-deps --editable .
  printf '%s' "$venv_sources" >.venv/sources.stamp
fi
export PATH="$PWD/.venv/bin:$PATH"
