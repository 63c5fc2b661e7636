//! How the library is linked: under the name programs ask for, and bound to its own functions.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in ["-Wl,-soname,libnvidia-ml.so.1", "-Wl,-Bsymbolic"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
