//! The program from outside: arguments and requests in, lines, exit codes and files out.

mod bad_input;
mod exit_codes;
mod sessions;
mod stand;
mod thirty_turns;
