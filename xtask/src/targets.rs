//! Standard libraries of other targets than the host.

use std::path::Path;

use crate::command::cmd;
use crate::install;

/// Has rustup install the standard library of `target`, unless it is installed.
pub fn add(target: &str) -> Result<(), String> {
    if compiles_for("rustc", target) {
        return Ok(());
    }
    let add = format!("rustup target add {target}");
    if !install::may_change_machine() {
        return Err(format!(
            "rustc has no standard library for {target}: `{add}` installs it"
        ));
    }
    println!(
        "adding a target to rustup's toolchain ({}=1 turns this off)",
        install::NO_INSTALL
    );
    install::alone(|| cmd(&add).run())?;
    if compiles_for("rustc", target) {
        return Ok(());
    }
    Err(format!(
        "rustc has no standard library for {target}; `{add}` installed it for rustup's toolchain only"
    ))
}

/// Whether a compiler has a standard library for a target.
pub fn compiles_for(rustc: &str, target: &str) -> bool {
    let libraries = cmd(&format!("{rustc} --print target-libdir --target {target}")).stdout();
    libraries.is_some_and(|path| Path::new(path.trim()).is_dir())
}
