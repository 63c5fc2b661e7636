//! What the device does wrong, and to which requests.

use std::time::Duration;

use vram_protocol::{Opcode, QueueKind};

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is taken, not carried out and never answered.
    Silence,
    /// It is carried out at once and answered after this time, unless its ring is stopped before.
    Late(Duration),
    /// It is carried out; the answer has another tag.
    WrongTag,
    /// It is carried out; the used ring tells this length.
    UsedLength(u32),
    /// It is carried out; the answer claims that this many bytes were moved.
    Moved(u64),
    /// It is not carried out; the answer has this status, which need not be one.
    Status(u32),
    /// Half of its bytes are moved, then the transfer fails.
    Partial,
    /// It is carried out; the used ring names a chain that does not exist.
    UnknownChain,
}

/// Which requests a fault befalls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requests {
    /// Every one.
    All,
    /// Those of the request queues.
    Data,
    /// Those of one kind.
    Of(Opcode),
}

/// Which of those requests, counted from when the fault was armed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Every one.
    Always,
    /// Only this one, the first is 1; the fault is then over.
    Nth(u32),
    /// The first, the third and so on.
    EveryOther,
}

#[derive(Debug)]
struct Rule {
    fault: Fault,
    requests: Requests,
    when: When,
    seen: u32,
}

/// The faults that are armed.
#[derive(Debug, Default)]
pub(super) struct Plan {
    rules: Vec<Rule>,
}

impl Plan {
    pub(super) fn arm(&mut self, fault: Fault, requests: Requests, when: When) {
        self.rules.push(Rule { fault, requests, when, seen: 0 });
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    /// What befalls the next request of this kind. Every rule counts it, the first one that applies decides.
    pub(super) fn take(&mut self, opcode: Opcode) -> Option<Fault> {
        let mut decided = None;
        self.rules.retain_mut(|rule| {
            if !rule.requests.include(opcode) {
                return true;
            }
            rule.seen += 1;
            let (applies, is_over) = match rule.when {
                When::Always => (true, false),
                When::Nth(number) => (rule.seen == number, rule.seen >= number),
                When::EveryOther => (rule.seen % 2 == 1, false),
            };
            if applies && decided.is_none() {
                decided = Some(rule.fault);
            }
            !is_over
        });
        decided
    }
}

impl Requests {
    fn include(self, opcode: Opcode) -> bool {
        match self {
            Requests::All => true,
            Requests::Data => opcode.queue() == QueueKind::Request,
            Requests::Of(only) => opcode == only,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_counts_only_requests_it_is_about() {
        let mut plan = Plan::default();
        plan.arm(Fault::WrongTag, Requests::Of(Opcode::Write), When::Nth(2));
        plan.arm(Fault::Silence, Requests::Data, When::EveryOther);

        let taken = [Opcode::Info, Opcode::Read, Opcode::Write, Opcode::Write, Opcode::Write, Opcode::Write]
            .map(|opcode| plan.take(opcode));

        let silence = Some(Fault::Silence);
        assert_eq!(taken, [None, silence, None, Some(Fault::WrongTag), None, silence]);
        plan.clear();
        assert_eq!(plan.take(Opcode::Read), None);
    }
}
