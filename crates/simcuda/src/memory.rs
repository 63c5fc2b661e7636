//! Plain allocations: a band, a shard, access for the GPU and its peers.

use vram_gpu::{Backend as _, GpuId};
use vram_gpu_sim::GRANULARITY_BYTES;

use crate::abi::{Out, api};
use crate::context::current;
use crate::driver::{Allocation, Driver, lock};
use crate::status::Status;
use crate::stream::finish_device;

fn allocate(driver: &Driver, len: usize) -> Result<u64, Status> {
    let (_, gpu) = current(driver)?;
    let asked_bytes = len as u64;
    let rounded = asked_bytes.checked_next_multiple_of(GRANULARITY_BYTES).filter(|rounded| *rounded > 0);
    let len_bytes = rounded.ok_or(Status::INVALID_VALUE)?;
    let shard = driver.sim.create_shard(gpu, len_bytes)?;
    let band = match driver.sim.reserve_band(len_bytes, GRANULARITY_BYTES) {
        Ok(band) => band,
        Err(error) => {
            driver.sim.release_shard(shard)?;
            return Err(error.into());
        }
    };
    driver.sim.map(band.start, &shard)?;
    let access: Vec<GpuId> = lock(&driver.contexts).access_to(gpu).iter().collect();
    driver.sim.set_access(band, &access)?;
    lock(&driver.allocations).insert(band.start.0, Allocation { band, shard, asked_bytes });
    Ok(band.start.0)
}

api! {
    fn cuMemAlloc_v2(pointer: Out<u64>, len: usize) {
        let driver = Driver::get()?;
        pointer.check()?;
        pointer.put(allocate(driver, len)?)
    }

    fn cuMemFree_v2(pointer: u64) {
        let driver = Driver::get()?;
        current(driver)?;
        if pointer == 0 {
            return Ok(());
        }
        let allocation = lock(&driver.allocations).remove(&pointer).ok_or(Status::INVALID_VALUE)?;
        finish_device(driver, allocation.shard.gpu)?;
        driver.sim.unmap(allocation.band)?;
        driver.sim.release_shard(allocation.shard)?;
        driver.sim.free_band(allocation.band)?;
        Ok(())
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, len: Out<usize>, pointer: u64) {
        let driver = Driver::get()?;
        let allocations = lock(&driver.allocations);
        let found = allocations
            .range(..=pointer)
            .next_back()
            .filter(|(start, allocation)| pointer - **start < allocation.asked_bytes);
        let (start, allocation) = found.ok_or(Status::INVALID_VALUE)?;
        base.put_if_wanted(*start)?;
        len.put_if_wanted(usize::try_from(allocation.asked_bytes).unwrap_or(usize::MAX))
    }
}
