//! The guard under which the tests of this crate run commands.

fn main() {
    decurion_exec::guard::serve()
}
