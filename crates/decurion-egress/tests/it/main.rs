//! Tests of the proxy over real loopback sockets.
#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected has failed")]

mod attacks;
mod certificates;
mod flows;
mod judge;
mod masked;
mod support;
