//! Payment by Cashu tokens, tested with an independent mint and wallet.

use crate::command::cmd;
use crate::files::{absolute, create};
use crate::install;
use crate::services::pip;
use crate::testing::{self, Tests};

/// The newest that installs, with the versions of what it uses that it runs with.
const MINT: &str = "cashu==0.19.2 marshmallow<4 limits<4";

/// Installs the mint (PyPI) under `target/cashu`, and has the tests of tokens use it.
pub fn cashu() -> Result<String, String> {
    let folder = absolute("target/cashu")?;
    create(&folder)?;
    install::alone(|| {
        let venv = folder.join("venv");
        if !venv.join("bin/mint").is_file() {
            cmd(&format!("python3 -m venv {}", venv.display())).run()?;
            pip(&folder, MINT)?;
        }
        Ok(())
    })?;
    testing::build_workspace()?;
    Tests {
        targets: "--test dvm",
        filter: "nostr::cash",
        env: &[("CASHU_VENV", &folder.join("venv").display().to_string())],
        ..Tests::default()
    }
    .run()?;
    Ok("PyPI's mint and wallet agree on every coin".to_string())
}
