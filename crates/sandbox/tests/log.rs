//! Alone in its process, because the subscriber of the log is the process's.

use std::io::Read;
use std::sync::Mutex;

use vram_sandbox::spawn_named;

#[test]
fn spawn_named_panic_is_logged_as_an_error() {
    let (mut log, writer) = std::io::pipe().unwrap();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(Mutex::new(writer)).finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let outcome = spawn_named("lift", || panic!("stuck")).unwrap().join();

    let _: vram_sandbox::Outcome<()> = outcome;
    let mut text = [0; 4096];
    let length = log.read(&mut text).unwrap();
    let text = String::from_utf8_lossy(&text[..length]);
    assert!(
        text.contains("ERROR") && text.contains("Contained a panic work=\"lift\" reason=\"stuck\""),
        "{text}"
    );
}
