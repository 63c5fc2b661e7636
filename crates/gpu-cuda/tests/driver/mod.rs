//! Running a test in a process of its own that loads the driver it is meant for.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::ffi::{CString, c_int, c_void};
use std::process::Command;

use vram_gpu::GpuId;
use vram_gpu_contract::{Injection, SimulatedDriver};

const SPECIFICATION: &str = "VRAM_SIMCUDA_GPUS";
/// Set for the inner process: run the test, start no other.
const INNER: &str = "VRAM_CONTRACT_INNER";
/// Asked for by whoever has a GPU.
const REAL: &str = "VRAM_CONTRACT_REAL_CUDA";

/// A host to simulate.
#[derive(Clone, Copy)]
pub(crate) struct Host {
    pub(crate) name: &'static str,
    pub(crate) specification: &'static str,
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value == "1")
}

/// Runs the body of the test with this name in a process for each host, or right here for the real driver.
#[track_caller]
pub(crate) fn on_each(hosts: &[Host], test: &str, body: impl FnOnce(bool)) {
    if is_set(INNER) {
        return body(false);
    }
    if is_set(REAL) {
        // One at a time: tests that fill the GPU's memory would be in each other's way.
        static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        return body(true);
    }
    for host in hosts {
        in_process(test, Some(host.specification), true, host.name);
    }
}

/// Runs the body in one process, with what its environment should be.
#[track_caller]
pub(crate) fn in_process_with(test: &str, specification: Option<&str>, has_nvml: bool, body: impl FnOnce()) {
    if is_set(INNER) {
        return body();
    }
    in_process(test, specification, has_nvml, test);
}

#[track_caller]
fn in_process(test: &str, specification: Option<&str>, has_nvml: bool, what: &str) {
    let driver = SimulatedDriver::locate().unwrap();
    if !has_nvml {
        driver.remove("libnvidia-ml.so.1").unwrap();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env("LD_LIBRARY_PATH", driver.library_path()).env(INNER, "1");
    match specification {
        Some(specification) => command.env(SPECIFICATION, specification),
        None => command.env_remove(SPECIFICATION),
    };
    let output = command.output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}\n{text}", output.status);
    // A name that matches nothing runs nothing, and nothing fails.
    assert!(text.contains("1 passed"), "{what}: the test did not run\n{text}");
}

type OneDevice = unsafe extern "C" fn(c_int) -> u32;
type Number = unsafe extern "C" fn(u64) -> u32;

/// The simulated driver's own ways to stall and fail.
pub(crate) struct SimulatedFaults {
    pause: OneDevice,
    resume: OneDevice,
    lose: OneDevice,
    fail_copy: Number,
}

impl SimulatedFaults {
    pub(crate) fn load() -> Self {
        // SAFETY: the functions have these types in the simulated driver, and no other library has them.
        unsafe {
            Self {
                pause: std::mem::transmute::<*mut c_void, OneDevice>(symbol("vramSimPause")),
                resume: std::mem::transmute::<*mut c_void, OneDevice>(symbol("vramSimResume")),
                lose: std::mem::transmute::<*mut c_void, OneDevice>(symbol("vramSimLoseGpu")),
                fail_copy: std::mem::transmute::<*mut c_void, Number>(symbol("vramSimFailCopy")),
            }
        }
    }

    pub(crate) fn lose_gpu(&self, gpu: GpuId) {
        // SAFETY: takes any number.
        assert_eq!(unsafe { (self.lose)(c_int::from(gpu.0)) }, 0);
    }
}

fn symbol(name: &str) -> *mut c_void {
    // SAFETY: the library is loaded already; this only finds it again, and it is never closed.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    let name = CString::new(name).unwrap();
    // SAFETY: the handle is open and the name ends with a zero byte.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

impl Injection for SimulatedFaults {
    fn pause(&self, gpu: GpuId) {
        // SAFETY: takes any number.
        assert_eq!(unsafe { (self.pause)(c_int::from(gpu.0)) }, 0);
    }

    fn resume(&self, gpu: GpuId) {
        // SAFETY: takes any number.
        assert_eq!(unsafe { (self.resume)(c_int::from(gpu.0)) }, 0);
    }

    fn fail_next_copy(&self) {
        // SAFETY: takes any number.
        assert_eq!(unsafe { (self.fail_copy)(1) }, 0);
    }
}
