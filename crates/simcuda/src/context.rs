//! Contexts, and which one is current on a thread.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_uint};

use vram_gpu::{Backend as _, GpuId, GpuSet};

use crate::abi::{Done, Handle, Out, api};
use crate::driver::{Driver, lock};
use crate::status::Status;

/// Primary contexts have small handles by device, made ones count up from here.
const FIRST_MADE: usize = 0x10_0000;
const PRIMARY_STEP: usize = 0x1000;

/// All contexts.
pub(crate) struct Contexts {
    /// How often each device's primary context is retained.
    retained: Vec<u32>,
    flags: Vec<c_uint>,
    made: HashMap<usize, GpuId>,
    next: usize,
    /// Pairs of devices: the first may touch plain allocations of the second.
    peers: HashSet<(GpuId, GpuId)>,
}

impl Contexts {
    pub(crate) fn new(gpus: usize) -> Self {
        Self {
            retained: vec![0; gpus],
            flags: vec![0; gpus],
            made: HashMap::new(),
            next: FIRST_MADE,
            peers: HashSet::new(),
        }
    }

    /// The device of a live context.
    pub(crate) fn device_of(&self, context: Handle) -> Result<GpuId, Status> {
        let handle = context.addr();
        if let Some(gpu) = self.made.get(&handle) {
            return Ok(*gpu);
        }
        let index = (handle / PRIMARY_STEP).checked_sub(1).filter(|_| handle.is_multiple_of(PRIMARY_STEP));
        let alive = index.filter(|index| self.retained.get(*index).is_some_and(|count| *count > 0));
        let gpu = alive.and_then(|index| u16::try_from(index).ok()).map(GpuId);
        gpu.ok_or(Status::INVALID_CONTEXT)
    }

    /// Who may touch a plain allocation on a GPU.
    pub(crate) fn access_to(&self, home: GpuId) -> GpuSet {
        let peers = self.peers.iter().filter(|(_, to)| *to == home).map(|(from, _)| *from);
        let all: Vec<GpuId> = peers.chain([home]).collect();
        GpuSet::of(&all)
    }
}

fn primary(gpu: GpuId) -> Handle {
    std::ptr::without_provenance_mut((gpu.index() + 1) * PRIMARY_STEP)
}

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The context that is current on this thread, and its device.
pub(crate) fn current(driver: &Driver) -> Result<(usize, GpuId), Status> {
    let top = STACK.with_borrow(|stack| stack.last().copied()).filter(|top| *top != 0);
    let top = top.ok_or(Status::INVALID_CONTEXT)?;
    let gpu = lock(&driver.contexts).device_of(std::ptr::without_provenance_mut(top))?;
    Ok((top, gpu))
}

/// The device of a context.
pub(crate) fn device_of(driver: &Driver, context: Handle) -> Result<GpuId, Status> {
    lock(&driver.contexts).device_of(context)
}

fn set_current(context: Handle) {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        if !context.is_null() {
            stack.push(context.addr());
        }
    });
}

fn make(driver: &Driver, device: c_int) -> Result<Handle, Status> {
    let gpu = driver.gpu(device)?;
    let mut contexts = lock(&driver.contexts);
    let handle = contexts.next;
    contexts.next += PRIMARY_STEP;
    contexts.made.insert(handle, gpu);
    drop(contexts);
    STACK.with_borrow_mut(|stack| stack.push(handle));
    Ok(std::ptr::without_provenance_mut(handle))
}

/// Applies who may touch a GPU's plain allocations.
fn apply_access(driver: &Driver, home: GpuId) -> Done {
    let access: Vec<GpuId> = lock(&driver.contexts).access_to(home).iter().collect();
    for allocation in lock(&driver.allocations).values().filter(|allocation| allocation.shard.gpu == home) {
        driver.sim.set_access(allocation.band, &access)?;
    }
    Ok(())
}

api! {
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) {
        let driver = Driver::get()?;
        let gpu = driver.gpu(device)?;
        context.check()?;
        driver.sim.memory(gpu)?;
        lock(&driver.contexts).retained[gpu.index()] += 1;
        context.put(primary(gpu))
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let driver = Driver::get()?;
        let gpu = driver.gpu(device)?;
        let mut contexts = lock(&driver.contexts);
        let count = &mut contexts.retained[gpu.index()];
        *count = count.checked_sub(1).ok_or(Status::INVALID_CONTEXT)?;
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        let driver = Driver::get()?;
        let gpu = driver.gpu(device)?;
        let contexts = lock(&driver.contexts);
        flags.put(contexts.flags[gpu.index()])?;
        active.put(c_int::from(contexts.retained[gpu.index()] > 0))
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) {
        let driver = Driver::get()?;
        let gpu = driver.gpu(device)?;
        lock(&driver.contexts).flags[gpu.index()] = flags;
        Ok(())
    }

    fn cuCtxCreate_v2(context: Out<Handle>, _flags: c_uint, device: c_int) {
        let driver = Driver::get()?;
        context.check()?;
        context.put(make(driver, device)?)
    }

    fn cuCtxDestroy_v2(context: Handle) {
        let driver = Driver::get()?;
        let made = lock(&driver.contexts).made.remove(&context.addr());
        made.ok_or(Status::INVALID_CONTEXT)?;
        STACK.with_borrow_mut(|stack| {
            if stack.last() == Some(&context.addr()) {
                stack.pop();
            }
        });
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<Handle>) {
        Driver::get()?;
        let top = STACK.with_borrow(|stack| stack.last().copied()).unwrap_or(0);
        context.put(std::ptr::without_provenance_mut(top))
    }

    fn cuCtxSetCurrent(context: Handle) {
        let driver = Driver::get()?;
        if !context.is_null() {
            device_of(driver, context)?;
        }
        set_current(context);
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: Handle) {
        device_of(Driver::get()?, context)?;
        STACK.with_borrow_mut(|stack| stack.push(context.addr()));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<Handle>) {
        Driver::get()?;
        let top = STACK.with_borrow_mut(Vec::pop).ok_or(Status::INVALID_CONTEXT)?;
        context.put_if_wanted(std::ptr::without_provenance_mut(top))
    }

    fn cuCtxGetDevice(device: Out<c_int>) {
        let (_, gpu) = current(Driver::get()?)?;
        device.put(c_int::from(gpu.0))
    }

    fn cuCtxGetApiVersion(_context: Handle, version: Out<c_uint>) {
        Driver::get()?;
        version.put(3020)
    }

    fn cuCtxSetFlags(flags: c_uint) {
        let driver = Driver::get()?;
        let (_, gpu) = current(driver)?;
        lock(&driver.contexts).flags[gpu.index()] = flags;
        Ok(())
    }

    fn cuCtxGetFlags(flags: Out<c_uint>) {
        let driver = Driver::get()?;
        let (_, gpu) = current(driver)?;
        let held = lock(&driver.contexts).flags[gpu.index()];
        flags.put(held)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        current(Driver::get()?)?;
        least.put_if_wanted(0)?;
        greatest.put_if_wanted(0)
    }

    fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) {
        let driver = Driver::get()?;
        let (_, gpu) = current(driver)?;
        let to = device_of(driver, peer)?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        if to == gpu {
            return Err(Status::INVALID_DEVICE);
        }
        if !driver.sim.config().can_access_peer(gpu, to) {
            return Err(Status::PEER_ACCESS_UNSUPPORTED);
        }
        if !lock(&driver.contexts).peers.insert((gpu, to)) {
            return Err(Status::PEER_ACCESS_ALREADY_ENABLED);
        }
        apply_access(driver, to)
    }

    fn cuCtxDisablePeerAccess(peer: Handle) {
        let driver = Driver::get()?;
        let (_, gpu) = current(driver)?;
        let to = device_of(driver, peer)?;
        if !lock(&driver.contexts).peers.remove(&(gpu, to)) {
            return Err(Status::PEER_ACCESS_NOT_ENABLED);
        }
        apply_access(driver, to)
    }
}
