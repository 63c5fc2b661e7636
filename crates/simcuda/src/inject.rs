//! What the real driver does not have: a way to tell that this one is simulated, and to make it stall and fail.
//!
//! Tests find these with `dlsym`. All but the first return a result code like the rest of the API.

use std::ffi::c_int;

use crate::abi::api;
use crate::driver::Driver;

api! {
    /// Answers 0. That it is there at all says what this library is.
    fn vramSimulatedDriver() {
        Ok(())
    }

    /// Holds all copies and fills of streams on a device.
    fn vramSimPause(device: c_int) {
        let driver = Driver::get()?;
        driver.sim.faults().pause(driver.gpu(device)?);
        Ok(())
    }

    /// Lets them go on.
    fn vramSimResume(device: c_int) {
        let driver = Driver::get()?;
        driver.sim.faults().resume(driver.gpu(device)?);
        Ok(())
    }

    /// The `nth` copy enqueued from now on (1 is the next) fails.
    fn vramSimFailCopy(nth: u64) {
        Driver::get()?.sim.faults().fail_copy(nth);
        Ok(())
    }

    /// Loses a device for good.
    fn vramSimLoseGpu(device: c_int) {
        let driver = Driver::get()?;
        driver.sim.faults().lose_gpu(driver.gpu(device)?);
        Ok(())
    }
}
