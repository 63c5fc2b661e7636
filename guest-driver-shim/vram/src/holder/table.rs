//! What the holder holds, and who uses it. No input and output: the device is behind a trait.

use std::collections::{BTreeMap, BTreeSet};

use vram::{Device, DeviceAddress};

use super::protocol::{Digest, ENTRIES_PER_REPLY, Entry, Handle, MAX_ENTRIES, Name, Refusal, Reply, Wish};

/// The part of the device that the holder itself uses.
pub(crate) trait Memory {
    fn allocate(&self, bytes: u64, alignment_bytes: u64) -> Result<DeviceAddress, vram::Error>;
    fn free(&self, address: DeviceAddress) -> Result<(), vram::Error>;
}

impl Memory for Device {
    fn allocate(&self, bytes: u64, alignment_bytes: u64) -> Result<DeviceAddress, vram::Error> {
        self.allocate_raw(bytes, alignment_bytes)
    }

    fn free(&self, address: DeviceAddress) -> Result<(), vram::Error> {
        Device::free(self, address)
    }
}

/// One connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Client {
    /// Never used twice.
    pub(crate) number: u64,
    /// Its process, for messages.
    pub(crate) pid: u32,
}

struct Held {
    address: DeviceAddress,
    bytes: u64,
    sha256: Option<Digest>,
    filling: Option<Client>,
    users: BTreeSet<Client>,
}

impl Held {
    fn entry(&self, name: &Name) -> Entry {
        Entry {
            name: name.clone(),
            address: Handle::Address(self.address),
            bytes: self.bytes,
            sha256: self.sha256,
            filling_pid: self.filling.map(|client| client.pid),
        }
    }

    /// Whether someone other than `client` would lose something if it were freed.
    fn taken(&self, name: &Name, client: Client) -> Result<(), Refusal> {
        if let Some(Client { pid, .. }) = self.filling.filter(|other| *other != client) {
            return Err(Refusal::BeingFilled { name: name.clone(), pid });
        }
        match self.users.iter().find(|other| **other != client) {
            Some(Client { pid, .. }) => Err(Refusal::InUse { name: name.clone(), pid: *pid }),
            None => Ok(()),
        }
    }
}

/// All held allocations, by name.
pub(crate) struct Table<M> {
    memory: M,
    held: BTreeMap<Name, Held>,
}

impl<M: Memory> Table<M> {
    pub(crate) fn new(memory: M) -> Self {
        Self { memory, held: BTreeMap::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Allocates for a client that will fill it.
    pub(crate) fn reserve(
        &mut self,
        client: Client,
        wish: Wish,
        bytes: u64,
        alignment_bytes: u64,
    ) -> Result<Entry, Refusal> {
        if self.held.len() >= MAX_ENTRIES {
            return Err(Refusal::TooMany);
        }
        let name = self.choose(wish)?;
        let address = self.memory.allocate(bytes, alignment_bytes).map_err(refusal)?;
        let held = Held { address, bytes, sha256: None, filling: Some(client), users: BTreeSet::new() };
        let entry = held.entry(&name);
        self.held.insert(name, held);
        Ok(entry)
    }

    fn choose(&self, wish: Wish) -> Result<Name, Refusal> {
        match wish {
            Wish::Exactly(name) if self.held.contains_key(&name) => Err(Refusal::NameTaken { name }),
            Wish::Exactly(name) => Ok(name),
            Wish::Like(name) if !self.held.contains_key(&name) => Ok(name),
            // One of them is free: there are more numbers than entries.
            Wish::Like(name) => (2..=MAX_ENTRIES + 2)
                .map(|number| name.with_ending(&format!("-{number}")))
                .find(|name| !self.held.contains_key(name))
                .ok_or(Refusal::TooMany),
        }
    }

    /// Notes what is in it; what was being filled is ready.
    pub(crate) fn record(
        &mut self,
        client: Client,
        name: Name,
        sha256: Option<Digest>,
    ) -> Result<Entry, Refusal> {
        let Some(held) = self.held.get_mut(&name) else {
            return Err(Refusal::Unknown { handle: Handle::Name(name) });
        };
        if held.filling != Some(client) && !held.users.contains(&client) {
            return Err(Refusal::NotYours { name });
        }
        if held.filling == Some(client) {
            held.filling = None;
            held.users.insert(client);
        }
        held.sha256 = sha256;
        Ok(held.entry(&name))
    }

    /// Keeps it from being freed by others until the client leaves.
    pub(crate) fn open(&mut self, client: Client, handle: Handle) -> Result<Entry, Refusal> {
        let name = self.find(handle)?;
        let Some(held) = self.held.get_mut(&name) else {
            return Err(Refusal::Unknown { handle: Handle::Name(name) });
        };
        if let Some(Client { pid, .. }) = held.filling {
            return Err(Refusal::BeingFilled { name, pid });
        }
        held.users.insert(client);
        Ok(held.entry(&name))
    }

    /// Frees one that nobody else uses.
    pub(crate) fn free(&mut self, client: Client, handle: Handle) -> Result<Reply, Refusal> {
        let name = self.find(handle)?;
        self.free_named(&name, |held| held.taken(&name, client))
    }

    /// Frees all; unless `force`d, only if nobody else uses any.
    pub(crate) fn free_all(&mut self, client: Client, force: bool) -> Result<Reply, Refusal> {
        if !force {
            self.held.iter().try_for_each(|(name, held)| held.taken(name, client))?;
        }
        let names: Vec<Name> = self.held.keys().cloned().collect();
        let (mut allocations, mut bytes) = (0, 0u64);
        for name in names {
            if let Reply::Freed { bytes: freed, .. } = self.free_named(&name, |_| Ok(()))? {
                allocations += 1;
                bytes = bytes.saturating_add(freed);
            }
        }
        Ok(Reply::Freed { allocations, bytes })
    }

    fn free_named(
        &mut self,
        name: &Name,
        check: impl FnOnce(&Held) -> Result<(), Refusal>,
    ) -> Result<Reply, Refusal> {
        let held =
            self.held.get(name).ok_or_else(|| Refusal::Unknown { handle: Handle::Name(name.clone()) })?;
        check(held)?;
        let (address, bytes) = (held.address, held.bytes);
        match self.memory.free(address) {
            // What the device no longer knows is free; keeping the entry would keep the holder alive for nothing.
            Ok(()) | Err(vram::Error::BadAddress(_) | vram::Error::Stale(_) | vram::Error::DeviceGone(_)) => {
            }
            Err(error) => return Err(refusal(error)),
        }
        self.held.remove(name);
        Ok(Reply::Freed { allocations: 1, bytes })
    }

    /// Some entries after a name.
    pub(crate) fn list(&self, after: Option<Name>) -> Reply {
        let mut rest =
            self.held.iter().filter(|(name, _)| after.as_ref().is_none_or(|after| *name > after)).peekable();
        let entries = rest.by_ref().take(ENTRIES_PER_REPLY).map(|(name, held)| held.entry(name)).collect();
        Reply::Entries { entries, more: rest.peek().is_some() }
    }

    /// A connection ended: what it was filling is freed, what it used is not used by it any more.
    pub(crate) fn leave(&mut self, client: Client) {
        let mut unfinished = Vec::new();
        for (name, held) in &mut self.held {
            held.users.remove(&client);
            if held.filling == Some(client) {
                unfinished.push(name.clone());
            }
        }
        for name in unfinished {
            if self.free_named(&name, |_| Ok(())).is_err() {
                // It cannot be freed now. Nobody fills it any more, so that `free` can try again.
                if let Some(held) = self.held.get_mut(&name) {
                    held.filling = None;
                }
            }
        }
    }

    fn find(&self, handle: Handle) -> Result<Name, Refusal> {
        let found = match &handle {
            Handle::Name(name) => self.held.contains_key(name).then(|| name.clone()),
            Handle::Address(address) => {
                self.held.iter().find(|(_, held)| held.address == *address).map(|(name, _)| name.clone())
            }
        };
        found.ok_or(Refusal::Unknown { handle })
    }
}

/// The device's refusal as the holder passes it on: with its words, shortened to what surely fits in a line.
fn refusal(error: vram::Error) -> Refusal {
    if matches!(error, vram::Error::Stale(_)) {
        return Refusal::Stale;
    }
    Refusal::Device { errno: error.errno(), message: error.to_string().chars().take(500).collect() }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use proptest::prelude::*;

    use super::*;

    /// Device memory as a set of addresses.
    #[derive(Default)]
    struct Addresses {
        live: RefCell<BTreeSet<u64>>,
        next: RefCell<u64>,
    }

    impl Memory for Addresses {
        fn allocate(&self, bytes: u64, _: u64) -> Result<DeviceAddress, vram::Error> {
            if bytes == 0 {
                return Err(vram::Error::WrongVersion { found: 0, wanted: 0 });
            }
            *self.next.borrow_mut() += 0x1000;
            let address = *self.next.borrow();
            self.live.borrow_mut().insert(address);
            Ok(DeviceAddress(address))
        }

        fn free(&self, address: DeviceAddress) -> Result<(), vram::Error> {
            assert!(self.live.borrow_mut().remove(&address.0), "freed twice");
            Ok(())
        }
    }

    const A: Client = Client { number: 1, pid: 11 };
    const B: Client = Client { number: 2, pid: 22 };

    fn table() -> Table<Addresses> {
        Table::new(Addresses::default())
    }

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn handle(text: &str) -> Handle {
        text.parse().unwrap()
    }

    fn put(table: &mut Table<Addresses>, client: Client, text: &str) -> Entry {
        table.reserve(client, Wish::Exactly(name(text)), 10, 0).unwrap();
        table.record(client, name(text), Some(Digest([1; 32]))).unwrap()
    }

    #[test]
    fn reserve_then_leave_frees() {
        let mut table = table();
        table.reserve(A, Wish::Exactly(name("x")), 10, 0).unwrap();

        table.leave(A);

        assert!(table.is_empty() && table.memory().live.borrow().is_empty());
    }

    #[test]
    fn record_then_leave_keeps_under_name_and_address() {
        let mut table = table();
        let entry = put(&mut table, A, "x");
        table.leave(A);

        assert_eq!(table.open(B, handle("x")).unwrap(), entry);
        assert_eq!(table.open(B, entry.address.clone()).unwrap(), entry);
        assert_eq!(entry.filling_pid, None);
    }

    #[test]
    fn open_while_filled_by_another_is_refused_and_names_it() {
        let mut table = table();
        table.reserve(A, Wish::Exactly(name("x")), 10, 0).unwrap();

        assert_eq!(table.open(B, handle("x")), Err(Refusal::BeingFilled { name: name("x"), pid: 11 }));
        assert_eq!(table.free(B, handle("x")), Err(Refusal::BeingFilled { name: name("x"), pid: 11 }));
        assert_eq!(table.record(B, name("x"), None), Err(Refusal::NotYours { name: name("x") }));
    }

    #[test]
    fn free_while_used_by_another_is_refused_until_it_leaves() {
        let mut table = table();
        put(&mut table, A, "x");

        assert_eq!(table.free(B, handle("x")), Err(Refusal::InUse { name: name("x"), pid: 11 }));
        assert_eq!(table.free_all(B, false), Err(Refusal::InUse { name: name("x"), pid: 11 }));
        table.leave(A);
        assert_eq!(table.free(B, handle("x")), Ok(Reply::Freed { allocations: 1, bytes: 10 }));

        assert!(table.is_empty());
    }

    #[test]
    fn free_all_by_force_frees_what_others_use() {
        let mut table = table();
        put(&mut table, A, "x");
        table.reserve(A, Wish::Exactly(name("y")), 10, 0).unwrap();

        assert_eq!(table.free_all(B, true), Ok(Reply::Freed { allocations: 2, bytes: 20 }));

        table.leave(A);
        assert!(table.memory().live.borrow().is_empty());
    }

    #[test]
    fn name_taken_is_refused_or_numbered() {
        let mut table = table();
        put(&mut table, A, "x");

        assert_eq!(
            table.reserve(B, Wish::Exactly(name("x")), 1, 0),
            Err(Refusal::NameTaken { name: name("x") })
        );
        assert_eq!(table.reserve(B, Wish::Like(name("x")), 1, 0).unwrap().name, name("x-2"));
        assert_eq!(table.reserve(B, Wish::Like(name("x")), 1, 0).unwrap().name, name("x-3"));
    }

    #[test]
    fn reserve_beyond_the_bound_is_refused() {
        let mut table = table();
        for _ in 0..MAX_ENTRIES {
            table.reserve(A, Wish::Like(Name::from_any(&table.held.len().to_string())), 1, 0).unwrap();
        }

        assert_eq!(table.reserve(A, Wish::Like(name("one-more")), 1, 0), Err(Refusal::TooMany));
    }

    #[test]
    fn reserve_the_device_refuses_leaves_nothing() {
        let mut table = table();

        let refused = table.reserve(A, Wish::Exactly(name("x")), 0, 0);

        assert!(matches!(refused, Err(Refusal::Device { .. })));
        assert!(table.is_empty());
    }

    #[derive(Clone, Debug)]
    enum Act {
        Reserve(bool, u8),
        Record(bool, u8),
        Open(bool, u8),
        Free(bool, u8),
        FreeAll(bool, bool),
        Leave(bool),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => (any::<bool>(), 0..6u8).prop_map(|(c, n)| Act::Reserve(c, n)),
            3 => (any::<bool>(), 0..6u8).prop_map(|(c, n)| Act::Record(c, n)),
            2 => (any::<bool>(), 0..6u8).prop_map(|(c, n)| Act::Open(c, n)),
            2 => (any::<bool>(), 0..6u8).prop_map(|(c, n)| Act::Free(c, n)),
            1 => (any::<bool>(), any::<bool>()).prop_map(|(c, f)| Act::FreeAll(c, f)),
            1 => any::<bool>().prop_map(Act::Leave),
        ]
    }

    proptest! {
        #[test]
        fn table_after_any_acts_holds_exactly_the_live_memory(acts in prop::collection::vec(act(), 0..60)) {
            let mut table = table();
            let who = |first: bool| if first { A } else { B };
            let what = |number: u8| name(&format!("n{number}"));

            for act in acts {
                match act {
                    Act::Reserve(c, n) => drop(table.reserve(who(c), Wish::Exactly(what(n)), 1, 0)),
                    Act::Record(c, n) => drop(table.record(who(c), what(n), None)),
                    Act::Open(c, n) => drop(table.open(who(c), Handle::Name(what(n)))),
                    Act::Free(c, n) => drop(table.free(who(c), Handle::Name(what(n)))),
                    Act::FreeAll(c, force) => drop(table.free_all(who(c), force)),
                    Act::Leave(c) => table.leave(who(c)),
                }
                let held: BTreeSet<u64> = table.held.values().map(|held| held.address.0).collect();
                prop_assert_eq!(&held, &*table.memory().live.borrow());
            }

            table.leave(A);
            table.leave(B);
            prop_assert!(table.held.values().all(|held| held.filling.is_none() && held.users.is_empty()));
        }

        #[test]
        fn list_page_by_page_returns_each_once_in_order(count in 0usize..40) {
            let mut table = table();
            for number in 0..count {
                put(&mut table, A, &format!("n{number:03}"));
            }

            let mut seen = Vec::new();
            loop {
                let Reply::Entries { entries, more } = table.list(seen.last().cloned()) else { unreachable!() };
                seen.extend(entries.into_iter().map(|entry| entry.name));
                if !more { break; }
            }

            prop_assert_eq!(seen.len(), count);
            prop_assert!(seen.is_sorted());
        }
    }
}
