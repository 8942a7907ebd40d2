#!/usr/bin/env bash
# Turns a title into the last part of a web address.
printf '%s\n' "$1" |
  tr '[:upper:]' '[:lower:]' |
  sed -e 's/ /-/g'
