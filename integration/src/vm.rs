//! One virtual machine: how it is put together, and what a test can do with it while it runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::agent::{Agent, Output};
use crate::host::{Process, file_tail, wait_until};
use crate::initramfs::Initramfs;
use crate::lab::{Kernel, Lab};
use crate::qmp;

/// The longest path a Unix socket can have, without the closing zero.
const MAX_SOCKET_PATH: usize = 107;
/// For things that take milliseconds unless something is broken, or the machine is very busy.
const SHORT: Duration = Duration::from_secs(60);

/// What the kernel does at its start that no test here is about, and that takes an emulated processor long.
const NEEDLESS_INITCALLS: &str = "jent_mod_init,crypto_kdf108_init,load_system_certificate_list";

/// A generic vhost-user device, as QEMU's `vhost-user-test-device-pci` offers it. It does not connect again when its
/// server went away: with `reconnect-ms` QEMU 11.1 looks for the server before the socket is connected, and ends.
#[derive(Debug, Clone)]
pub struct VhostUserDevice {
    /// The socket the device's server listens on, as a host path. It must exist when the VM starts.
    pub socket: PathBuf,
    /// The virtio device id.
    pub virtio_id: u32,
    /// Number of virtqueues.
    pub num_vqs: u32,
    /// Entries of each virtqueue.
    pub vq_size: u32,
    /// Bytes of configuration space.
    pub config_size: u32,
}

impl VhostUserDevice {
    /// A vram device with `num_vqs` queues.
    pub fn vram(socket: impl Into<PathBuf>, num_vqs: u32) -> VhostUserDevice {
        VhostUserDevice { socket: socket.into(), virtio_id: 37, num_vqs, vq_size: 256, config_size: 64 }
    }
}

#[derive(Debug)]
struct Disk {
    image: PathBuf,
    is_writable: bool,
}

/// What a VM is to be made of. The default is one vCPU, 512 MiB, the 6.12 kernel, no disk and no device.
#[derive(Debug)]
pub struct VmBuilder {
    lab: Lab,
    kernel_series: String,
    boots_packed: bool,
    memory_mib: u32,
    vcpus: u32,
    cpu_model: String,
    machine_options: String,
    disks: Vec<Disk>,
    devices: Vec<VhostUserDevice>,
    stock_modules: Vec<String>,
    own_modules: Vec<(PathBuf, bool)>,
    files: Vec<(PathBuf, String)>,
    kernel_args: Vec<String>,
    qemu_args: Vec<String>,
    boot_timeout: Duration,
}

impl VmBuilder {
    /// Series of the kernel a VM has if nothing else is asked for.
    pub const DEFAULT_KERNEL: &str = "6.12";

    /// A default VM.
    pub fn new(lab: &Lab) -> VmBuilder {
        VmBuilder {
            lab: lab.clone(),
            kernel_series: Self::DEFAULT_KERNEL.into(),
            boots_packed: false,
            memory_mib: 512,
            vcpus: 1,
            // Everything an emulated processor can do, but for page tables of five levels, which take longer to walk.
            cpu_model: "max,la57=off".into(),
            machine_options: String::new(),
            disks: Vec::new(),
            devices: Vec::new(),
            stock_modules: ["virtio_pci", "virtio_console"].map(String::from).to_vec(),
            own_modules: Vec::new(),
            files: Vec::new(),
            kernel_args: Vec::new(),
            qemu_args: Vec::new(),
            boot_timeout: Duration::from_secs(120),
        }
    }

    /// Series of the guest kernel: `"6.1"`, `"6.12"`, `"7"`.
    pub fn kernel(mut self, series: &str) -> VmBuilder {
        self.kernel_series = series.into();
        self
    }

    /// Boots the kernel as it is packed for PCs, which takes a second and a half longer. A guest that is to sleep needs
    /// that: after a start through the PVH entry QEMU resets it when it wakes.
    pub fn boot_packed(mut self) -> VmBuilder {
        self.boots_packed = true;
        self
    }

    /// Guest memory, shared with vhost-user servers.
    pub fn memory_mib(mut self, mib: u32) -> VmBuilder {
        self.memory_mib = mib;
        self
    }

    /// Number of virtual processors.
    pub fn vcpus(mut self, vcpus: u32) -> VmBuilder {
        self.vcpus = vcpus;
        self
    }

    /// QEMU's `-cpu`, for instance `"max,+svm,la57=off"`.
    pub fn cpu_model(mut self, model: &str) -> VmBuilder {
        self.cpu_model = model.into();
        self
    }

    /// More options for `-machine q35`, for instance `"kernel-irqchip=split"`.
    pub fn machine_option(mut self, option: &str) -> VmBuilder {
        self.machine_options.push(',');
        self.machine_options.push_str(option);
        self
    }

    /// A raw file as a read-only virtio disk: `/dev/vda`, `/dev/vdb` and so on, in this order. Its length must
    /// be a multiple of 512.
    pub fn disk(mut self, image: impl Into<PathBuf>) -> VmBuilder {
        self.disks.push(Disk { image: image.into(), is_writable: false });
        self
    }

    /// Like [`VmBuilder::disk`], but the guest can write to it. What it wrote is in the file once the VM has been shut
    /// down.
    pub fn writable_disk(mut self, image: impl Into<PathBuf>) -> VmBuilder {
        self.disks.push(Disk { image: image.into(), is_writable: true });
        self
    }

    /// A vhost-user device.
    pub fn vhost_user(mut self, device: VhostUserDevice) -> VmBuilder {
        self.devices.push(device);
        self
    }

    /// A module of the stock kernel, loaded at boot with all it depends on.
    pub fn stock_module(mut self, name: &str) -> VmBuilder {
        self.stock_modules.push(name.into());
        self
    }

    /// A module of ours, loaded at boot after the stock ones; the start fails if it does not load.
    pub fn module(mut self, path: impl Into<PathBuf>) -> VmBuilder {
        self.own_modules.push((path.into(), true));
        self
    }

    /// A module of ours, put into `/lib/modules` but not loaded.
    pub fn unloaded_module(mut self, path: impl Into<PathBuf>) -> VmBuilder {
        self.own_modules.push((path.into(), false));
        self
    }

    /// A file of the host that is in the guest from the start, with its permissions.
    pub fn file(mut self, host_path: impl Into<PathBuf>, guest_path: &str) -> VmBuilder {
        self.files.push((host_path.into(), guest_path.into()));
        self
    }

    /// A word for the kernel's command line.
    pub fn kernel_arg(mut self, word: &str) -> VmBuilder {
        self.kernel_args.push(word.into());
        self
    }

    /// A word for QEMU's command line; call twice for an option with a value. Host paths in it go through
    /// [`Lab::path_in_tree`].
    pub fn qemu_arg(mut self, word: &str) -> VmBuilder {
        self.qemu_args.push(word.into());
        self
    }

    /// How long the guest may take until its agent answers.
    pub fn boot_timeout(mut self, timeout: Duration) -> VmBuilder {
        self.boot_timeout = timeout;
        self
    }

    /// Starts QEMU and waits until the guest's agent answers.
    pub fn start(self) -> Result<Vm> {
        let begun = Instant::now();
        let kernel = self.lab.kernel(&self.kernel_series)?;
        let folder = tempfile::Builder::new()
            .prefix("vram-vm.")
            .tempdir()
            .context("Could not create a temporary folder for the VM")?;
        let initrd = folder.path().join("initrd");
        self.initramfs(&kernel)?.write(&initrd)?;

        let agent_socket = folder.path().join("agent.sock");
        let listener = UnixListener::bind(&agent_socket)
            .with_context(|| format!("Could not listen on {}", agent_socket.display()))?;
        listener.set_nonblocking(true).context("Could not set up the agent's socket")?;
        // Makes a hello of this VM's agent unlike anything a command prints.
        let token = folder.path().file_name().unwrap_or_default().to_string_lossy().replace('.', "-");

        let command = self.qemu(&kernel, folder.path(), &token)?;
        let process = Process::start("QEMU", &command, &folder.path().join("qemu.log"))?;
        let console = folder.path().join("console.log");
        let process = Mutex::new(process);
        let mut stream: Option<UnixStream> = None;
        wait_until("QEMU to connect to the agent's socket", SHORT, || {
            healthy(&process, &console)?;
            match listener.accept() {
                Ok((accepted, _)) => {
                    stream = Some(accepted);
                    Ok(true)
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
                Err(error) => Err(error).context("Could not accept QEMU's connection"),
            }
        })?;
        let stream = stream.context("QEMU did not connect")?;
        stream.set_nonblocking(false).context("Could not set up the agent's socket")?;
        let agent = Agent::new(stream, &token)?;
        let mut vm = Vm { process, agent, kernel, console, folder, boot_time: Duration::ZERO };
        vm.wait_for_boot(0, begun + self.boot_timeout)?;
        vm.boot_time = begun.elapsed();
        Ok(vm)
    }

    fn initramfs(&self, kernel: &Kernel) -> Result<Initramfs> {
        let mut initramfs = Initramfs::new(&self.lab)?;
        let mut stock = self.stock_modules.clone();
        if !self.disks.is_empty() {
            stock.push("virtio_blk".into());
        }
        initramfs.add_stock_modules(&self.lab, kernel, &stock)?;
        for (path, load) in &self.own_modules {
            initramfs.add_own_module(path, *load)?;
        }
        for (host_path, guest_path) in &self.files {
            initramfs.add_file(host_path, guest_path)?;
        }
        Ok(initramfs)
    }

    fn qemu(&self, kernel: &Kernel, folder: &Path, token: &str) -> Result<std::process::Command> {
        let in_tree = |path: &Path| -> Result<String> { option_value(&self.lab.path_in_tree(path)?) };
        let mut arguments: Vec<String> = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).to_string()));
        let memory = self.memory_mib;
        add(&["-nodefaults", "-no-user-config", "-display", "none", "-accel", "tcg"]);
        add(&["-machine", &format!("q35,memory-backend=memory{}", self.machine_options)]);
        add(&["-cpu", &self.cpu_model, "-smp", &self.vcpus.to_string(), "-m", &format!("{memory}M")]);
        add(&["-object", &format!("memory-backend-memfd,id=memory,size={memory}M,share=on")]);
        let image = match self.boots_packed {
            true => self.lab.packed_kernel(kernel),
            false => self.lab.unpacked_kernel(kernel)?,
        };
        add(&["-kernel", &in_tree(&image)?]);
        add(&["-initrd", &in_tree(&folder.join("initrd"))?]);
        // A fault in our module must fail the test that caused it, so an oops is a panic; and a panic stays
        // on the console until we have read it.
        //
        // QEMU without KVM gives the guest the host's TSC, and the kernel measures that against the PIT at boot. On a
        // busy host the measurement is off by up to ten times, and with it every timeout in the guest, so the TSC is
        // not used; the HPET is right. For the same reason the kernel does not test whether timer interrupts come.
        //
        // Self-tests of the kernel's cryptography and the keys it trusts are of no use here and take a second.
        let mut words = format!(
            "console=ttyS0 earlyprintk=ttyS0 loglevel=7 notsc no_timer_check mitigations=off oops=panic panic=0 \
             cryptomgr.notests=1 initcall_blacklist={NEEDLESS_INITCALLS} vram.token={token}"
        );
        for word in &self.kernel_args {
            words.push(' ');
            words.push_str(word);
        }
        add(&["-append", &words]);
        add(&["-chardev", &format!("file,id=console,path={}", in_tree(&folder.join("console.log"))?)]);
        add(&["-serial", "chardev:console"]);
        add(&["-device", "virtio-serial-pci,id=agentbus"]);
        add(&["-chardev", &format!("socket,id=agent,path={}", in_tree(&folder.join("agent.sock"))?)]);
        add(&["-device", "virtserialport,bus=agentbus.0,chardev=agent,name=vram.agent"]);
        add(&["-qmp", &format!("unix:{},server=on,wait=off", in_tree(&folder.join("qmp.sock"))?)]);
        for (index, disk) in self.disks.iter().enumerate() {
            let image = absolute(&disk.image)?;
            let read_only = if disk.is_writable { "off" } else { "on" };
            add(&[
                "-drive",
                &format!("if=none,id=disk{index},format=raw,readonly={read_only},file={}", in_tree(&image)?),
                "-device",
                &format!("virtio-blk-pci,drive=disk{index},serial=disk{index}"),
            ]);
        }
        for (index, device) in self.devices.iter().enumerate() {
            let socket = absolute(&device.socket)?;
            let path = in_tree(&socket)?;
            ensure!(
                path.len() <= MAX_SOCKET_PATH,
                "The socket path {path} is too long; use a shorter folder (set TMPDIR)"
            );
            add(&[
                "-chardev",
                &format!("socket,id=vhost{index},path={path}"),
                "-device",
                &format!(
                    "vhost-user-test-device-pci,id=device{index},chardev=vhost{index},virtio-id={},num_vqs={},\
                     vq_size={},config_size={}",
                    device.virtio_id, device.num_vqs, device.vq_size, device.config_size
                ),
            ]);
        }
        let mut command = self.lab.command("qemu-system-x86_64");
        command.args(arguments).args(&self.qemu_args);
        Ok(command)
    }
}

/// A running virtual machine. Dropping it kills QEMU and removes everything of it.
#[derive(Debug)]
pub struct Vm {
    // Declared first, dropped first: QEMU ends before its folder goes.
    process: Mutex<Process>,
    agent: Agent,
    kernel: Kernel,
    console: PathBuf,
    folder: TempDir,
    boot_time: Duration,
}

/// A command that runs in the guest; see [`Vm::spawn`].
#[derive(Debug, Clone)]
pub struct GuestJob {
    id: u64,
    script: String,
}

impl Vm {
    /// Runs a shell script in the guest and waits for it. An error if it does not end within `timeout`; it is
    /// then killed with all it started.
    pub fn run(&self, script: &str, timeout: Duration) -> Result<Output> {
        let job = self.spawn(script)?;
        self.wait(&job, timeout)
    }

    /// [`Vm::run`], and an error too if the script's exit status is not zero. Returns its output as text.
    pub fn run_ok(&self, script: &str, timeout: Duration) -> Result<String> {
        let output = self.run(script, timeout)?;
        if !output.is_success() {
            bail!(
                "The guest command `{script}` ended with status {}.\n--- output ---\n{}\n--- errors ---\n{}\n{}",
                output.status,
                output.text(),
                output.error_text(),
                self.console_tail()
            );
        }
        Ok(output.text())
    }

    /// Starts a shell script in the guest. Other commands can be run meanwhile.
    pub fn spawn(&self, script: &str) -> Result<GuestJob> {
        let id = self.agent.start_script(script)?;
        Ok(GuestJob { id, script: script.to_string() })
    }

    /// Waits for a spawned script. If it does not end within `timeout` it is killed, and that is an error.
    pub fn wait(&self, job: &GuestJob, timeout: Duration) -> Result<Output> {
        let answer = self.agent.wait_for_answer(job.id, Instant::now() + timeout, &|| self.check());
        match answer {
            Ok(Some(output)) => Ok(output),
            Ok(None) => {
                // The complaint is about the time; a guest too sick to kill a script shows in what follows.
                let _ = self.agent.kill_script(job.id);
                self.agent.forget(job.id);
                bail!(
                    "The guest command `{}` did not end within {timeout:?} and was killed.\n{}",
                    job.script,
                    self.console_tail()
                )
            }
            Err(error) => {
                self.agent.forget(job.id);
                Err(error.context(format!("While the guest ran `{}`", job.script)))
            }
        }
    }

    /// Kills a spawned script and all it started; [`Vm::wait`] then returns status 137.
    pub fn kill(&self, job: &GuestJob) -> Result<()> {
        self.agent.kill_script(job.id)
    }

    /// Copies a file of the host, with its permissions, into the running guest. Meant for some MiB.
    pub fn push_file(&self, host_path: &Path, guest_path: &str) -> Result<()> {
        let bytes = fs::read(host_path).with_context(|| format!("Could not read {}", host_path.display()))?;
        let about =
            fs::metadata(host_path).with_context(|| format!("Could not inspect {}", host_path.display()))?;
        self.push_bytes(&bytes, about.permissions().mode() & 0o777, guest_path)
    }

    /// Writes a file in the running guest.
    pub fn push_bytes(&self, bytes: &[u8], mode: u32, guest_path: &str) -> Result<()> {
        let id = self.agent.start_put(bytes, mode, guest_path)?;
        let job = GuestJob { id, script: format!("(writing {guest_path})") };
        let output = self.wait(&job, Duration::from_secs(30))?;
        ensure!(output.is_success(), "The guest could not write {guest_path}: {}", output.error_text());
        Ok(())
    }

    /// Reboots the guest from inside, as `reboot -f` does, and waits for its agent. QEMU and its connections
    /// stay; files pushed or written in the guest are gone, modules are loaded again.
    pub fn reboot(&self, timeout: Duration) -> Result<()> {
        let boots = self.agent.boots();
        self.agent.send_verb("reboot")?;
        self.wait_for_boot(boots, Instant::now() + timeout)
    }

    /// Resets the machine without a word to the guest, as its reset button would, and waits for its agent.
    pub fn reset(&self, timeout: Duration) -> Result<()> {
        let boots = self.agent.boots();
        self.qmp("system_reset", Value::Object(Default::default()))?;
        self.wait_for_boot(boots, Instant::now() + timeout)
    }

    /// Powers the guest off and waits until QEMU has ended.
    pub fn shut_down(self) -> Result<()> {
        self.agent.send_verb("poweroff")?;
        // The process is locked while it is waited for, and quoting its log locks it again.
        let waited = self.process().wait_exit(SHORT);
        let status = waited.with_context(|| self.console_tail())?;
        ensure!(status.success(), "QEMU ended with {status}.\n{}", self.process().log_tail());
        Ok(())
    }

    /// Unloads the guest's driver, which shows what it has not let go of: objects of its own, and pages of processes that
    /// it keeps pinned. An error for that, and for anything else the kernel has to complain of.
    pub fn unload_driver(&self) -> Result<()> {
        // The processes that hold it open need a moment to die.
        let unload = "[ ! -d /sys/module/virtio_vram ] || { killall -9 vram 2>/dev/null; \
            for n in 1 2 3 4 5; do rmmod virtio_vram 2>/dev/null && exit; sleep 0.2; done; rmmod virtio_vram; }";
        self.run_ok(unload, SHORT)?;
        let count = "cat /proc/sys/vm/stat_refresh; \
            set -- $(sed -n 's/^nr_foll_pin_[a-z]* //p' /proc/vmstat); echo $(($1 - $2))";
        let pinned = self.run_ok(count, SHORT)?;
        ensure!(pinned == "0", "{pinned} pages of the guest are still pinned.\n{}", self.console_tail());
        let complaints = self.kernel_complaints()?;
        ensure!(
            complaints.is_empty(),
            "The guest's kernel complains: {complaints:#?}\n{}",
            self.console_tail()
        );
        Ok(())
    }

    /// [`Vm::unload_driver`], then [`Vm::shut_down`].
    pub fn finish(self) -> Result<()> {
        self.unload_driver()?;
        self.shut_down()
    }

    /// Runs a command of QEMU's control protocol, for instance `stop`, `cont`, `device_del`.
    pub fn qmp(&self, command: &str, arguments: Value) -> Result<Value> {
        qmp::execute(&self.folder.path().join("qmp.sock"), command, arguments)
            .with_context(|| format!("QMP command {command}"))
    }

    /// Lines of the kernel's log that tell of a bug: warnings, oopses, lockups, stuck tasks.
    pub fn kernel_complaints(&self) -> Result<Vec<String>> {
        let log = self.run_ok("dmesg", SHORT)?;
        let signs = [
            "WARNING:",
            "BUG:",
            "BUG ",
            "Oops",
            "Call Trace:",
            "blocked for more than",
            "lockup",
            "UBSAN",
            "refcount_t:",
            "Objects remaining",
            "still has objects",
            "detected stall",
        ];
        let complains = |line: &&str| signs.iter().any(|sign| line.contains(sign));
        Ok(log.lines().filter(complains).map(String::from).collect())
    }

    /// The end of the serial console and of QEMU's own log, for messages.
    pub fn console_tail(&self) -> String {
        format!("{}\n{}", file_tail("guest console", &self.console), self.process().log_tail())
    }

    /// Everything the serial console printed.
    pub fn console_text(&self) -> String {
        fs::read(&self.console).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// The guest's kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// From the start of the build of its initramfs until the agent answered.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    fn wait_for_boot(&self, boots: u64, deadline: Instant) -> Result<()> {
        let hello = self
            .agent
            .wait_for_boot(boots, deadline, &|| self.check())
            .with_context(|| format!("The guest did not boot.\n{}", self.console_tail()))?;
        ensure!(
            hello.failed_modules.is_empty(),
            "The guest could not load {}.\n{}",
            hello.failed_modules,
            self.console_tail()
        );
        Ok(())
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> Result<()> {
        healthy(&self.process, &self.console)
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // A test that fails says what it expected; this says what happened.
        if thread::panicking() {
            eprintln!("{}", self.console_tail());
        }
    }
}

/// An error if QEMU has ended or the guest's kernel has given up.
fn healthy(process: &Mutex<Process>, console: &Path) -> Result<()> {
    let mut process = process.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(status) = process.exit_status()? {
        bail!("QEMU ended ({status}).\n{}\n{}", process.log_tail(), file_tail("guest console", console));
    }
    let tail = file_tail("guest console", console);
    if tail.contains("Kernel panic - not syncing") {
        bail!("The guest's kernel panicked.\n{tail}");
    }
    Ok(())
}

fn absolute(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).with_context(|| format!("{} does not exist", path.display()))
}

/// In QEMU's option lists a comma within a value is doubled.
fn option_value(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.replace(',', ",,"))
}
