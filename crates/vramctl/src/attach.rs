//! The options that attach a slice to a virtual machine.
//!
//! QEMU: `vhost-user-test-device-pci` exists under this name since 10.2, and knows `virtio-id`, `num_vqs`, `vq_size`
//! and `config_size`. Cloud Hypervisor: `--generic-vhost-user` exists since 52; its `device_type` was called
//! `virtio_id` in 52 and has its name since 53.
//!
//! What is printed here is typed into a shell, mostly by root. So names and paths are let through only if `vramd` could
//! have said them and they mean themselves to the shell and to the VMM; what a VMM cannot be told is refused.

use anyhow::{Result, ensure};
use serde::Serialize;
use vram_control_api::is_printable;
use vram_control_api::v1::Slice;

use crate::args::Vmm;

/// Queues of a device besides its request queues: control and events.
const OTHER_QUEUES: u32 = 2;
/// Entries of each queue.
const QUEUE_SIZE: u32 = 256;
/// Bytes of the configuration space.
const CONFIG_BYTES: u32 = 64;
/// Most characters of a slice's name.
const MAX_NAME_CHARS: usize = 31;
/// Most bytes of a socket's path: those of `sun_path` but the zero behind them (unix(7)).
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// Cloud Hypervisor gives these characters a meaning in its options, and knows no way to take it away.
const CLOUD_HYPERVISOR_SPECIAL: &str = ",\"[]";

/// What to add to a VMM's command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Attachment {
    /// The oldest version of the VMM that takes the arguments.
    pub(crate) minimum_version: &'static str,
    /// The arguments, one by one and without any quoting.
    pub(crate) arguments: Vec<String>,
    /// What else to see to.
    pub(crate) notes: Vec<String>,
}

impl Attachment {
    /// Fails if the name or the socket of the slice cannot be told to the VMM.
    pub(crate) fn new(slice: &Slice, vmm: Vmm) -> Result<Self> {
        check_name(&slice.name)?;
        check_socket(&slice.socket)?;
        match vmm {
            Vmm::Qemu => Ok(qemu(slice)),
            Vmm::CloudHypervisor => cloud_hypervisor(slice),
        }
    }

    /// The arguments on one line, quoted for a shell.
    pub(crate) fn shell_line(&self) -> String {
        let quoted: Vec<String> = self.arguments.iter().map(|argument| shell_quote(argument)).collect();
        quoted.join(" ") + "\n"
    }
}

fn check_name(name: &str) -> Result<()> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_name =
        (1..=MAX_NAME_CHARS).contains(&name.len()) && !name.starts_with('-') && name.bytes().all(allowed);
    ensure!(is_name, "The daemon calls the slice {name:?}, which is no name of a slice");
    Ok(())
}

fn check_socket(socket: &str) -> Result<()> {
    let is_path =
        socket.starts_with('/') && socket.len() <= MAX_SOCKET_PATH_BYTES && socket.chars().all(is_printable);
    ensure!(is_path, "The daemon says that the slice's socket is {socket:?}, which is no path of a socket");
    Ok(())
}

fn queues(slice: &Slice) -> u32 {
    u32::from(slice.request_queues) + OTHER_QUEUES
}

fn qemu(slice: &Slice) -> Attachment {
    let Slice { name, virtio_id, .. } = slice;
    // QEMU reads two commas in a value as one.
    let socket = slice.socket.replace(',', ",,");
    let arguments = [
        "-chardev",
        &format!("socket,id=vram-{name},path={socket}"),
        "-device",
        &format!(
            "vhost-user-test-device-pci,chardev=vram-{name},virtio-id={virtio_id},num_vqs={},vq_size={QUEUE_SIZE},config_size={CONFIG_BYTES}",
            queues(slice)
        ),
    ];
    let notes = [
        "QEMU 10.2 or newer has this device; vramd must be running when QEMU starts",
        "guest memory must be shared; if the machine's is not yet, add with its own size: \
         -m 4G -object memory-backend-memfd,id=mem,size=4G,share=on -machine q35,memory-backend=mem",
    ];
    Attachment {
        minimum_version: "10.2",
        arguments: arguments.map(str::to_owned).into(),
        notes: notes.map(str::to_owned).into(),
    }
}

fn cloud_hypervisor(slice: &Slice) -> Result<Attachment> {
    let Slice { socket, virtio_id, .. } = slice;
    ensure!(
        !socket.contains(|c| CLOUD_HYPERVISOR_SPECIAL.contains(c)),
        "Cloud Hypervisor cannot be told the socket {socket:?}: none of {CLOUD_HYPERVISOR_SPECIAL} may be in its path"
    );
    let queue_sizes: Vec<String> = (0..queues(slice)).map(|_| QUEUE_SIZE.to_string()).collect();
    let queue_sizes = queue_sizes.join(",");
    let arguments = [
        "--generic-vhost-user",
        &format!("socket={socket},device_type={virtio_id},queue_sizes=[{queue_sizes}]"),
    ];
    let notes = [
        "Cloud Hypervisor 52 or newer has this device; 52 itself calls device_type virtio_id",
        "guest memory must be shared; if the machine's is not yet, add shared=on: --memory size=4G,shared=on",
    ];
    Ok(Attachment {
        minimum_version: "52",
        arguments: arguments.map(str::to_owned).into(),
        notes: notes.map(str::to_owned).into(),
    })
}

/// A word of a POSIX shell that stands for these characters.
fn shell_quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./=,:+@%-".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use vram_control_api::v1::{Placement, SliceCounters, SliceState};

    use super::*;

    fn slice(socket: &str, request_queues: u16) -> Slice {
        Slice {
            name: "a".into(),
            state: SliceState::WaitingForFrontend,
            guarantee_bytes: 0,
            limit_bytes: 1,
            placement: Placement::Spill,
            home_gpu: None,
            allocated_bytes: 0,
            backed_bytes: 0,
            stored_bytes: 0,
            quarantined_bytes: 0,
            backed_by_gpu: vec![],
            allocations: 0,
            contexts: 0,
            socket: socket.into(),
            virtio_id: 37,
            request_queues,
            counters: SliceCounters::default(),
        }
    }

    #[test]
    fn attach_qemu_has_two_more_queues() {
        let attachment = Attachment::new(&slice("/run/vram/a.sock", 4), Vmm::Qemu).unwrap();

        assert_eq!(
            attachment.shell_line(),
            "-chardev socket,id=vram-a,path=/run/vram/a.sock -device vhost-user-test-device-pci,chardev=vram-a,\
             virtio-id=37,num_vqs=6,vq_size=256,config_size=64\n"
        );
    }

    #[test]
    fn attach_cloud_hypervisor_lists_every_queue() {
        let attachment = Attachment::new(&slice("/run/vram/a.sock", 1), Vmm::CloudHypervisor).unwrap();

        assert_eq!(
            attachment.shell_line(),
            "--generic-vhost-user 'socket=/run/vram/a.sock,device_type=37,queue_sizes=[256,256,256]'\n"
        );
    }

    #[test]
    fn attach_most_queues_fit() {
        let attachment = Attachment::new(&slice("/s", u16::MAX), Vmm::Qemu).unwrap();

        assert!(attachment.shell_line().contains("num_vqs=65537,"));
    }

    #[test]
    fn attach_strange_paths_mean_themselves_to_a_shell() {
        let paths = [
            "/it's, here",
            "/a b/$(id).sock",
            "/`id`",
            "/a;reboot",
            "/a\"b\\c",
            "/*?~#!&|<>",
            "/größe/s",
            "/=x",
            "/'",
        ];
        for path in paths {
            let attachment = Attachment::new(&slice(path, 1), Vmm::Qemu).unwrap();
            let script = format!("printf '%s\\n' {}", attachment.shell_line());

            let said = Command::new("sh").args(["-c", &script]).output().unwrap();

            assert_eq!(
                String::from_utf8_lossy(&said.stdout),
                attachment.arguments.join("\n") + "\n",
                "{path}"
            );
            // QEMU reads two commas in a value as one.
            let doubled = path.replace(',', ",,");
            assert_eq!(attachment.arguments[1], format!("socket,id=vram-a,path={doubled}"));
        }
    }

    #[test]
    fn attach_paths_that_are_none_are_refused() {
        let long = format!("/{}", "x".repeat(107));
        for path in ["", "s", "../s", "-o", "/a\nb", "/a\u{1b}[2J", "/a\u{202e}b", "/a\u{9b}", &long] {
            for vmm in [Vmm::Qemu, Vmm::CloudHypervisor] {
                let error = Attachment::new(&slice(path, 1), vmm).unwrap_err().to_string();

                assert!(error.contains("no path of a socket"), "{path:?}: {error}");
                assert!(error.chars().all(is_printable), "{error:?}");
            }
        }
        for path in ["/a,b", "/a\"b", "/[a", "/a]"] {
            assert!(Attachment::new(&slice(path, 1), Vmm::CloudHypervisor).is_err(), "{path}");
        }
    }

    #[test]
    fn attach_names_that_are_none_are_refused() {
        let long = "x".repeat(32);
        let names = ["", "-a", "a,server=on", "a b", "a;reboot", "$(id)", "A", "a\n", "ä", "a=b", &long];
        for name in names {
            for vmm in [Vmm::Qemu, Vmm::CloudHypervisor] {
                let slice = Slice { name: name.into(), ..slice("/s", 1) };

                let error = Attachment::new(&slice, vmm).unwrap_err().to_string();

                assert!(error.contains("no name of a slice"), "{name:?}: {error}");
            }
        }
    }
}
