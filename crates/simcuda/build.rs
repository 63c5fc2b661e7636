//! How the library is linked: under the name programs ask for, bound to its own functions, and never unloaded while
//! its streams' threads run.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in ["-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", "-Wl,-z,nodelete"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
