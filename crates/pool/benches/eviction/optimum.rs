//! What could be done by who knows the future.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::simulation::{HOST_LINK, Policy, Step};
use crate::trace::{Access, MEMORY, REGION_MIB};

const NEVER: usize = usize::MAX;

/// Belady's MIN: evicts what is needed last. It counts misses, not what promotions cost.
pub(crate) struct Min {
    next: Vec<usize>,
    /// When each region is needed next.
    needed: Vec<usize>,
    resident: Vec<bool>,
    now: usize,
    bypassing: bool,
}

impl Min {
    /// With bypass, a region that is needed later than all resident ones is not promoted.
    pub(crate) fn new(trace: &[Access], regions: u32, bypassing: bool) -> Self {
        let mut needed = vec![NEVER; regions as usize];
        let mut next = vec![NEVER; trace.len()];
        for (at, access) in trace.iter().enumerate().rev() {
            next[at] = std::mem::replace(&mut needed[access.region as usize], at);
        }
        let resident = (0..regions).map(|region| region < MEMORY).collect();
        Self { next, needed, resident, now: 0, bypassing }
    }
}

impl Policy for Min {
    fn access(&mut self, access: Access) -> Step {
        let region = access.region as usize;
        self.needed[region] = self.next[self.now];
        self.now += 1;
        if self.resident[region] {
            return Step::Hit;
        }
        let resident = (0..self.resident.len()).filter(|&region| self.resident[region]);
        let last = resident.max_by_key(|&region| self.needed[region]).expect("memory is full");
        if self.bypassing && self.needed[region] >= self.needed[last] {
            return Step::Bypass;
        }
        self.resident[last] = false;
        self.resident[region] = true;
        Step::Promote(last as u32)
    }
}

/// The least seconds that visits can take, promotions paid and write-backs free: a flow of least cost, in which each unit
/// is a place in GPU memory and its way through time is what the place holds.
pub(crate) fn least_seconds(visits: &[Access], regions: u32, tier: f64) -> f64 {
    let mut flow = Flow::new(3 * visits.len() + 1);
    let mut previous = vec![None; regions as usize];
    let mut all_missed_ps = 0;
    for (at, &Access { region, mib, .. }) in visits.iter().enumerate() {
        let [idle, inside, after, idle_next] = [3 * at, 3 * at + 1, 3 * at + 2, 3 * at + 3];
        all_missed_ps += ps(mib, tier);
        flow.edge(idle, idle_next, i64::from(MEMORY), 0);
        flow.edge(inside, after, 1, ps(mib, HOST_LINK) - ps(mib, tier));
        match previous[region as usize].replace(after) {
            Some(stays) => flow.edge(stays, inside, 1, 0),
            None if region < MEMORY => flow.edge(0, inside, 1, 0),
            None => {}
        }
        flow.edge(idle, inside, 1, ps(REGION_MIB, tier));
        flow.edge(after, idle_next, 1, 0);
    }
    (all_missed_ps + flow.least_cost(i64::from(MEMORY))) as f64 / 1e12
}

fn ps(mib: u64, gb_per_s: f64) -> i64 {
    ((mib << 20) as f64 * 1e3 / gb_per_s) as i64
}

struct Edge {
    from: usize,
    to: usize,
    room: i64,
    cost: i64,
}

/// From node 0 to the last one, over edges that are added in order of their way through time. Each edge is followed by
/// its reverse.
struct Flow {
    edges: Vec<Edge>,
    from: Vec<Vec<u32>>,
}

impl Flow {
    fn new(nodes: usize) -> Self {
        Self { edges: Vec::new(), from: vec![Vec::new(); nodes] }
    }

    fn edge(&mut self, from: usize, to: usize, room: i64, cost: i64) {
        for edge in [Edge { from, to, room, cost }, Edge { from: to, to: from, room: 0, cost: -cost }] {
            self.from[edge.from].push(self.edges.len() as u32);
            self.edges.push(edge);
        }
    }

    /// Successive shortest paths.
    fn least_cost(&mut self, mut units: i64) -> i64 {
        let mut potential = self.first_distances();
        let mut cost = 0;
        while units > 0 {
            let sink = self.from.len() - 1;
            let came_by = self.shortest(&mut potential);
            let mut path = Vec::new();
            let mut node = sink;
            while let Some(edge) = came_by[node] {
                path.push(edge as usize);
                node = self.edges[edge as usize].from;
            }
            let pushed = path.iter().map(|&edge| self.edges[edge].room).fold(units, i64::min);
            for edge in path {
                cost += pushed * self.edges[edge].cost;
                self.edges[edge].room -= pushed;
                self.edges[edge ^ 1].room += pushed;
            }
            units -= pushed;
        }
        cost
    }

    /// Nodes are numbered in order of time, so one pass finds the distances while nothing flows.
    fn first_distances(&self) -> Vec<i64> {
        let mut distances = vec![i64::MAX / 4; self.from.len()];
        distances[0] = 0;
        for node in 0..self.from.len() {
            for &edge in &self.from[node] {
                let edge = &self.edges[edge as usize];
                if edge.room > 0 {
                    distances[edge.to] = distances[edge.to].min(distances[node] + edge.cost);
                }
            }
        }
        distances
    }

    /// Dijkstra on reduced costs; the edge by which each node is reached.
    fn shortest(&self, potential: &mut [i64]) -> Vec<Option<u32>> {
        let mut distances = vec![i64::MAX; self.from.len()];
        let mut came_by = vec![None; self.from.len()];
        let mut open = BinaryHeap::from([(Reverse(0), 0)]);
        distances[0] = 0;
        while let Some((Reverse(distance), node)) = open.pop() {
            if distance > distances[node] {
                continue;
            }
            for &index in &self.from[node] {
                let edge = &self.edges[index as usize];
                let to = distance + edge.cost + potential[node] - potential[edge.to];
                if edge.room > 0 && to < distances[edge.to] {
                    distances[edge.to] = to;
                    came_by[edge.to] = Some(index);
                    open.push((Reverse(to), edge.to));
                }
            }
        }
        let farthest = distances[self.from.len() - 1];
        for (potential, distance) in potential.iter_mut().zip(distances) {
            *potential += distance.min(farthest);
        }
        came_by
    }
}
