//! A process in the guest that makes calls of the driver: `vram_calls`, which describes what goes in and out.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use vram_integration::{GuestJob, Vm};

use crate::SHORT;

/// Where it is in the guest.
pub(crate) const PROGRAM: &str = "/usr/bin/vram_calls";

pub(crate) struct Calls<'a> {
    vm: &'a Vm,
    job: GuestJob,
    /// Its pipes without `.in` and `.out`.
    pipe: String,
    last_id: u64,
    /// Came while another was waited for.
    outcomes: HashMap<u64, Outcome>,
}

/// How a call ended.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// The errno's name, or OK.
    pub(crate) error: String,
    /// By the guest's clock.
    pub(crate) took: Duration,
    pub(crate) value: u64,
    pub(crate) moved: u64,
    pub(crate) same: u64,
}

impl<'a> Calls<'a> {
    pub(crate) fn start(vm: &'a Vm, name: &str) -> Calls<'a> {
        let pipe = format!("/tmp/{name}");
        vm.run_ok(&format!("rm -f {pipe}.in {pipe}.out; mkfifo {pipe}.in {pipe}.out"), SHORT).unwrap();
        // Open both ways, so that neither end ever waits for the other to be there.
        let job = vm.spawn(&format!("exec {PROGRAM} 0<>{pipe}.in 1<>{pipe}.out")).unwrap();
        Calls { vm, job, pipe, last_id: 0, outcomes: HashMap::new() }
    }

    /// Begins calls, each a file and what to do with it, and returns what [`Calls::end`] wants.
    pub(crate) fn begin(&mut self, calls: &[(u32, String)]) -> Vec<u64> {
        let mut lines = String::new();
        let mut ids = Vec::new();
        for (file, call) in calls {
            self.last_id += 1;
            ids.push(self.last_id);
            lines += &format!("{} {file} {call}\n", self.last_id);
        }
        self.vm.run_ok(&format!("cat >{}.in <<'END'\n{lines}END", self.pipe), SHORT).unwrap();
        ids
    }

    pub(crate) fn end(&mut self, id: u64) -> Outcome {
        let read = format!("read -r line <{}.out; echo \"$line\"", self.pipe);
        loop {
            if let Some(outcome) = self.outcomes.remove(&id) {
                return outcome;
            }
            let line = self.vm.run_ok(&read, SHORT).unwrap();
            self.note(&line);
        }
    }

    /// Makes one call and waits for it.
    pub(crate) fn call(&mut self, file: u32, call: &str) -> Outcome {
        self.last_id += 1;
        let id = self.last_id;
        let pipe = &self.pipe;
        let script =
            format!("echo '{id} {file} {call}' >{pipe}.in; read -r line <{pipe}.out; echo \"$line\"");
        let line = self.vm.run_ok(&script, SHORT).unwrap();
        self.note(&line);
        self.end(id)
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, file: u32, call: &str, error: &str) -> Outcome {
        let outcome = self.call(file, call);
        assert_eq!(outcome.error, error, "{call}: {outcome:?}");
        outcome
    }

    #[track_caller]
    pub(crate) fn alloc(&mut self, file: u32, length: u64) -> u64 {
        self.expect(file, &format!("alloc {length}"), "OK").value
    }

    /// Kills the process and returns how long it took to end.
    pub(crate) fn kill(self) -> Duration {
        let begun = Instant::now();
        self.vm.kill(&self.job).unwrap();
        let output = self.vm.wait(&self.job, SHORT).unwrap();
        assert_eq!(output.status, 137, "{output:?}");
        begun.elapsed()
    }

    fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let [id, error, numbers @ ..] = words.as_slice() else { panic!("{line:?} is no outcome") };
        let numbers: Vec<u64> = numbers.iter().map(|word| word.parse().unwrap()).collect();
        let [milliseconds, value, moved, same] = numbers[..] else { panic!("{line:?} is no outcome") };
        let took = Duration::from_millis(milliseconds);
        let outcome = Outcome { error: (*error).to_string(), took, value, moved, same };
        self.outcomes.insert(id.parse().unwrap(), outcome);
    }
}
