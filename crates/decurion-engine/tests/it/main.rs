//! Behaviour of the engine, played on a stage: a script for the model and the log it must produce.

mod endings;
mod faults;
mod folding;
mod loops;
mod permission;
mod resuming;
