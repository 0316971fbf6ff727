//! Relays that are stopped and started while they are used, and keep what they have.

use super::relay::TestRelay;
use super::wait::wait_until;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

/// A relay of the tests' own, or with `NOSTR_RELAY_VENV`, the folder that it is installed in, PyPI's nostr-relay.
pub enum StoppableRelay {
    Own(Box<TestRelay>),
    Foreign(Foreign),
}

impl StoppableRelay {
    /// A running one. `folder` is for its database.
    pub fn start(folder: &Path) -> Self {
        match std::env::var_os("NOSTR_RELAY_VENV") {
            None => Self::Own(Box::new(TestRelay::start())),
            Some(venv) => {
                let relay = Foreign::new(venv.into(), folder);
                relay.resume();
                Self::Foreign(relay)
            }
        }
    }

    pub fn url(&self) -> &str {
        match self {
            Self::Own(relay) => &relay.url,
            Self::Foreign(relay) => &relay.url,
        }
    }

    /// Ends it as a power cut does. What it has said to have, it has.
    pub fn stop(&self) {
        match self {
            Self::Own(relay) => relay.stop(),
            Self::Foreign(relay) => relay.kill(),
        }
    }

    /// Starts it again; returns when it listens.
    pub fn resume(&self) {
        match self {
            Self::Own(relay) => relay.resume(),
            Self::Foreign(relay) => relay.resume(),
        }
    }
}

pub struct Foreign {
    url: String,
    port: u16,
    venv: PathBuf,
    folder: PathBuf,
    process: Mutex<Option<Child>>,
}

impl Foreign {
    fn new(venv: PathBuf, folder: &Path) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        Self {
            url: format!("ws://127.0.0.1:{port}"),
            port,
            venv,
            folder: folder.to_path_buf(),
            process: Mutex::new(None),
        }
    }

    fn resume(&self) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("relay.log"))
            .unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xtask/nostr/relay.sh");
        let child = Command::new(script)
            .args([&self.venv, &self.folder])
            .arg(self.port.to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            // It has children, which are to end with it.
            .process_group(0)
            .spawn()
            .unwrap();
        *self.process.lock().unwrap() = Some(child);
        let log = || std::fs::read_to_string(self.folder.join("relay.log")).unwrap();
        wait_until(
            || format!("the relay does not start\n{}", log()),
            || std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok(),
        );
    }

    fn kill(&self) {
        if let Some(mut child) = self.process.lock().unwrap().take() {
            let group = format!("-{}", child.id());
            let killed = Command::new("kill").args(["-KILL", "--", &group]).status();
            assert!(killed.unwrap().success());
            child.wait().unwrap();
        }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.kill();
    }
}
