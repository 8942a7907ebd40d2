//! Link settings of the program.

fn main() {
    // A position-independent executable of this size carries 600 KB of pointers that the loader must
    // relocate, page by page, at every start of the program and of each guard. Heap, stack and libraries
    // stay randomised.
    #[allow(clippy::disallowed_methods)] // this is how cargo tells the target
    let linux = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    if linux {
        println!("cargo::rustc-link-arg-bin=decurion=-no-pie");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
