//! The guard as a program of its own, for tests and for front ends that cannot run themselves again.

fn main() {
    decurion_exec::guard::serve()
}
