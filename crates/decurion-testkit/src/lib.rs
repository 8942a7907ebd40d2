//! What tests, benches and fault drivers stand on. Takes scripts and binaries, gives a loopback model that
//! checks what it is sent, a schema for what is printed, and measurements of what ran.

pub mod asking;
pub mod faults;
pub mod hosted;
pub mod proc;
pub mod pty;
pub mod repo;
pub mod server;
pub mod stage;
pub mod stream_schema;
pub mod sys;
pub mod tmux;
pub mod trace_events;
pub mod validate;
