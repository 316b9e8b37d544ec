//! Tells cargo that the embedded Python runtime is part of this crate: a new file in it must lead to a new build.

fn main() {
    println!("cargo:rerun-if-changed=python/app");
}
