//! The policies of the books, written for a small memory: what they decide counts, not how fast.
//!
//! Touches of one region that follow each other are one reference to them, so that a scan in small reads does not look
//! hot. All promote at each miss; with `bypassing`, only when more than the region's length was served from the tier.

use std::collections::VecDeque;

use crate::simulation::{Policy, Step};
use crate::trace::{Access, MEMORY, REGION_MIB};

/// Who leaves.
trait Order {
    fn hit(&mut self, region: u32);
    /// Takes out the region that leaves for another.
    fn victim(&mut self, incoming: u32) -> u32;
    fn admit(&mut self, region: u32);
}

struct Classic {
    order: Box<dyn Order>,
    resident: Vec<bool>,
    latest: Option<u32>,
    bypassed_mib: Option<Vec<u64>>,
}

/// Name and policy of each yardstick.
pub(crate) fn all(regions: u32, bypassing: bool) -> Vec<(&'static str, Box<dyn Policy>)> {
    let orders: Vec<(&'static str, Box<dyn Order>)> = vec![
        ("LRU", Box::new(Ranked::new(regions, |seen, _| seen.last))),
        ("FIFO", Box::new(Ranked::new(regions, |seen, _| seen.entered))),
        ("random", Box::new(Ranked::new(regions, |seen, now| mixed(seen.entered ^ mixed(now))))),
        ("CLOCK", Box::new(Sieve::new(Hand::Clock))),
        ("SIEVE", Box::new(Sieve::new(Hand::Sieve))),
        ("LRU-2", Box::new(Ranked::new(regions, |seen, _| seen.previous))),
        ("LIRS", Box::new(Ranked::new(regions, |seen, now| u64::MAX - lirs(seen, now)))),
        ("LFU aged", Box::new(Ranked::new(regions, |seen, _| seen.frequency))),
        ("MRU in scan", Box::new(ScanGuard::new(regions))),
        ("2Q", Box::new(TwoQueues::default())),
        ("S3-FIFO", Box::new(S3Fifo::default())),
        ("ARC", Box::new(Arc::default())),
        ("DRRIP", Box::new(Drrip::new(regions))),
    ];
    let classic = |mut order: Box<dyn Order>| {
        (0..regions.min(MEMORY)).for_each(|region| order.admit(region));
        let resident = (0..regions).map(|region| region < MEMORY).collect();
        let bypassed_mib = bypassing.then(|| vec![0; regions as usize]);
        Box::new(Classic { order, resident, latest: None, bypassed_mib }) as Box<dyn Policy>
    };
    orders.into_iter().map(|(name, order)| (name, classic(order))).collect()
}

impl Policy for Classic {
    fn access(&mut self, access: Access) -> Step {
        let region = access.region;
        let again = self.latest.replace(region) == Some(region);
        if self.resident[region as usize] {
            if !again {
                self.order.hit(region);
            }
            return Step::Hit;
        }
        if let Some(bypassed_mib) = &mut self.bypassed_mib {
            let bypassed_mib = &mut bypassed_mib[region as usize];
            *bypassed_mib += access.mib;
            if *bypassed_mib <= REGION_MIB {
                return Step::Bypass;
            }
            *bypassed_mib = 0;
        }
        let victim = self.order.victim(region);
        self.order.admit(region);
        self.resident[victim as usize] = false;
        self.resident[region as usize] = true;
        Step::Promote(victim)
    }
}

fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    number ^ (number >> 29)
}

/// What is known of a region: times in references.
#[derive(Clone, Copy, Default)]
struct Seen {
    resident: bool,
    entered: u64,
    last: u64,
    previous: u64,
    frequency: u64,
}

/// The longest of the time since the last reference and the one between the last two.
fn lirs(seen: &Seen, now: u64) -> u64 {
    let between = if seen.previous == 0 { u64::from(u32::MAX) } else { seen.last - seen.previous };
    between.max(now - seen.last)
}

/// The region with the lowest rank leaves.
struct Ranked {
    seen: Vec<Seen>,
    now: u64,
    rank: fn(&Seen, u64) -> u64,
}

impl Ranked {
    fn new(regions: u32, rank: fn(&Seen, u64) -> u64) -> Self {
        Self { seen: vec![Seen::default(); regions as usize], now: 0, rank }
    }

    fn leave(&mut self, rank: fn(&Seen, u64) -> u64) -> u32 {
        let resident = self.seen.iter().enumerate().filter(|(_, seen)| seen.resident);
        let (victim, _) = resident.min_by_key(|(_, seen)| rank(seen, self.now)).expect("memory is full");
        self.seen[victim].resident = false;
        victim as u32
    }
}

impl Order for Ranked {
    fn hit(&mut self, region: u32) {
        self.now += 1;
        if self.now.is_multiple_of(16 * u64::from(MEMORY)) {
            self.seen.iter_mut().for_each(|seen| seen.frequency /= 2);
        }
        let seen = &mut self.seen[region as usize];
        seen.previous = seen.last;
        seen.last = self.now;
        seen.frequency += 16;
    }

    fn victim(&mut self, _incoming: u32) -> u32 {
        self.leave(self.rank)
    }

    fn admit(&mut self, region: u32) {
        self.hit(region);
        let seen = &mut self.seen[region as usize];
        seen.resident = true;
        seen.entered = self.now;
    }
}

/// LRU, and MRU while the misses follow each other in order.
struct ScanGuard {
    lru: Ranked,
    latest_miss: u32,
    run: u32,
}

impl ScanGuard {
    fn new(regions: u32) -> Self {
        Self { lru: Ranked::new(regions, |seen, _| seen.last), latest_miss: 0, run: 0 }
    }
}

impl Order for ScanGuard {
    fn hit(&mut self, region: u32) {
        self.lru.hit(region);
    }

    fn victim(&mut self, incoming: u32) -> u32 {
        self.run = if incoming == self.latest_miss + 1 { self.run + 1 } else { 0 };
        self.latest_miss = incoming;
        if self.run >= 4 {
            self.lru.leave(|seen, _| u64::MAX - seen.last)
        } else {
            self.lru.leave(|seen, _| seen.last)
        }
    }

    fn admit(&mut self, region: u32) {
        self.lru.admit(region);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Hand {
    /// What is passed over becomes the newest.
    Clock,
    /// What is passed over keeps its place.
    Sieve,
}

/// Newest first; each with whether it was referenced since the hand came by.
struct Sieve {
    queue: Vec<(u32, bool)>,
    at: usize,
    hand: Hand,
}

impl Sieve {
    fn new(hand: Hand) -> Self {
        Self { queue: Vec::new(), at: 0, hand }
    }
}

impl Order for Sieve {
    fn hit(&mut self, region: u32) {
        self.queue
            .iter_mut()
            .filter(|(queued, _)| *queued == region)
            .for_each(|(_, referenced)| *referenced = true);
    }

    fn victim(&mut self, _incoming: u32) -> u32 {
        let oldest = self.queue.len() - 1;
        if self.hand == Hand::Clock {
            while self.queue[oldest].1 {
                self.queue[oldest].1 = false;
                self.queue.rotate_right(1);
            }
            return self.queue.remove(oldest).0;
        }
        let mut at = self.at.min(oldest);
        while std::mem::take(&mut self.queue[at].1) {
            at = at.checked_sub(1).unwrap_or(oldest);
        }
        let (victim, _) = self.queue.remove(at);
        // The next newer one; what enters now comes before it.
        self.at = if at == 0 { usize::MAX } else { at };
        victim
    }

    fn admit(&mut self, region: u32) {
        self.queue.insert(0, (region, false));
    }
}

fn forget(queue: &mut VecDeque<u32>, region: u32) -> bool {
    let at = queue.iter().position(|&queued| queued == region);
    at.is_some_and(|at| queue.remove(at).is_some())
}

/// 2Q, oldest first: a quarter of the memory for what came once, ghosts for half of it.
#[derive(Default)]
struct TwoQueues {
    once: VecDeque<u32>,
    ghosts: VecDeque<u32>,
    often: VecDeque<u32>,
}

impl Order for TwoQueues {
    fn hit(&mut self, region: u32) {
        if forget(&mut self.often, region) {
            self.often.push_back(region);
        }
    }

    fn victim(&mut self, _incoming: u32) -> u32 {
        if self.once.len() as u32 > MEMORY / 4 || self.often.is_empty() {
            let victim = self.once.pop_front().expect("memory is full");
            self.ghosts.push_back(victim);
            if self.ghosts.len() as u32 > MEMORY / 2 {
                self.ghosts.pop_front();
            }
            return victim;
        }
        self.often.pop_front().expect("not empty")
    }

    fn admit(&mut self, region: u32) {
        let known = forget(&mut self.ghosts, region);
        if known { &mut self.often } else { &mut self.once }.push_back(region);
    }
}

/// S3-FIFO, oldest first: a tenth of the memory for what is new.
#[derive(Default)]
struct S3Fifo {
    small: VecDeque<(u32, u8)>,
    main: VecDeque<(u32, u8)>,
    ghosts: VecDeque<u32>,
}

impl Order for S3Fifo {
    fn hit(&mut self, region: u32) {
        let queued = self.small.iter_mut().chain(&mut self.main).find(|(queued, _)| *queued == region);
        if let Some((_, count)) = queued {
            *count = (*count + 1).min(3);
        }
    }

    fn victim(&mut self, _incoming: u32) -> u32 {
        loop {
            if self.small.len() as u32 >= MEMORY / 10 || self.main.is_empty() {
                let (region, count) = self.small.pop_front().expect("memory is full");
                if count == 0 {
                    self.ghosts.push_back(region);
                    if self.ghosts.len() as u32 > MEMORY {
                        self.ghosts.pop_front();
                    }
                    return region;
                }
                self.main.push_back((region, 0));
            } else if let Some((region, count)) = self.main.pop_front() {
                if count == 0 {
                    return region;
                }
                self.main.push_back((region, count - 1));
            }
        }
    }

    fn admit(&mut self, region: u32) {
        let known = forget(&mut self.ghosts, region);
        if known { &mut self.main } else { &mut self.small }.push_back((region, 0));
    }
}

/// ARC, least recent first.
#[derive(Default)]
struct Arc {
    once: VecDeque<u32>,
    often: VecDeque<u32>,
    once_ghosts: VecDeque<u32>,
    often_ghosts: VecDeque<u32>,
    once_target: usize,
    known: bool,
}

impl Order for Arc {
    fn hit(&mut self, region: u32) {
        if forget(&mut self.once, region) || forget(&mut self.often, region) {
            self.often.push_back(region);
        }
    }

    fn victim(&mut self, incoming: u32) -> u32 {
        let memory = MEMORY as usize;
        let (once_ghosts, often_ghosts) = (self.once_ghosts.len(), self.often_ghosts.len());
        let was_often = self.often_ghosts.contains(&incoming);
        self.known = true;
        if forget(&mut self.once_ghosts, incoming) {
            self.once_target = (self.once_target + (often_ghosts / once_ghosts).max(1)).min(memory);
        } else if forget(&mut self.often_ghosts, incoming) {
            self.once_target = self.once_target.saturating_sub((once_ghosts / often_ghosts).max(1));
        } else {
            self.known = false;
            if self.once.len() + once_ghosts == memory && self.once_ghosts.pop_front().is_none() {
                return self.once.pop_front().expect("memory is full");
            }
            if self.once.len() + self.often.len() + self.once_ghosts.len() + often_ghosts >= 2 * memory {
                self.often_ghosts.pop_front();
            }
        }
        let over = self.once.len() > self.once_target || (was_often && self.once.len() == self.once_target);
        let from_once = self.often.is_empty() || (!self.once.is_empty() && over);
        let (from, ghosts) = if from_once {
            (&mut self.once, &mut self.once_ghosts)
        } else {
            (&mut self.often, &mut self.often_ghosts)
        };
        let victim = from.pop_front().expect("memory is full");
        ghosts.push_back(victim);
        victim
    }

    fn admit(&mut self, region: u32) {
        if std::mem::take(&mut self.known) { &mut self.often } else { &mut self.once }.push_back(region);
    }
}

/// DRRIP: two bits a region, and a set duel between inserting as soon needed and as hardly ever needed.
struct Drrip {
    /// Distance to the next reference as predicted, of resident regions.
    distance: Vec<Option<u8>>,
    hand: usize,
    duel: i32,
    inserted: u32,
}

impl Drrip {
    fn new(regions: u32) -> Self {
        Self { distance: vec![None; regions as usize], hand: 0, duel: 0, inserted: 0 }
    }
}

impl Order for Drrip {
    fn hit(&mut self, region: u32) {
        self.distance[region as usize] = Some(0);
    }

    fn victim(&mut self, _incoming: u32) -> u32 {
        loop {
            for _ in 0..self.distance.len() {
                self.hand = (self.hand + 1) % self.distance.len();
                if self.distance[self.hand] == Some(3) {
                    self.distance[self.hand] = None;
                    return self.hand as u32;
                }
            }
            self.distance.iter_mut().flatten().for_each(|distance| *distance += 1);
        }
    }

    fn admit(&mut self, region: u32) {
        self.inserted += 1;
        let bimodal = match region % 8 {
            0 => {
                self.duel = (self.duel + 1).min(64);
                false
            }
            1 => {
                self.duel = (self.duel - 1).max(-64);
                true
            }
            _ => self.duel > 0,
        };
        let far = bimodal && !self.inserted.is_multiple_of(32);
        self.distance[region as usize] = Some(if far { 3 } else { 2 });
    }
}
