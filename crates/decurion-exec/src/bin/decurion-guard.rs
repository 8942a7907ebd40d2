//! The guard as a separate program, for tests and for front ends that cannot run themselves again.

fn main() {
    decurion_exec::guard::serve()
}
