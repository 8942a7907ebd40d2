#!/usr/bin/env bash
# Checks slug.sh; prints the first mistake and fails. --slow takes its time: a second, or as many as it is told.
[ "$1" = "--slow" ] && sleep "${2:-1}"
check() {
  local got
  got=$(bash ./slug.sh "$1")
  if [ "$got" != "$2" ]; then
    echo "FAIL: slug of '$1' is '$got', should be '$2'"
    exit 1
  fi
}
check "Hello World" "hello-world"
check "Hello   World" "hello-world"
check "One" "one"
echo "all tests passed"
