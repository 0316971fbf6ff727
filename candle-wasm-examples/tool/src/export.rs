//! The site as a folder for hosts that only serve files, without special headers.

use crate::at;
use crate::build::copy;
use crate::compress;
use std::fs;
use std::path::Path;

const SCRIPT: &str = "isolation.js";
const FILES: [(&str, &str); 2] = [
    (SCRIPT, include_str!("../static/isolation.js")),
    (
        "isolation-worker.js",
        include_str!("../static/isolation-worker.js"),
    ),
];

/// Copies `site` to `to`, with a service worker that makes its pages cross-origin isolated. All links in it are relative, so that the folder
/// may be served at any path. Where the site's files have compressed copies, so do those of the folder.
///
/// # Errors
/// The site is not built, or `to` has something else in it.
pub fn export(site: &Path, to: &Path) -> Result<(), String> {
    if !site.join("index.html").exists() {
        return Err(format!(
            "{} not found: build it with `cargo xtask web`",
            site.display()
        ));
    }
    let is_ours = to.join(SCRIPT).exists();
    let filled = to.read_dir().is_ok_and(|mut found| found.next().is_some());
    match (to.exists(), is_ours, filled) {
        (true, true, _) => fs::remove_dir_all(to).map_err(at(to))?,
        (true, false, true) => {
            return Err(format!(
                "{} is not empty and is not an earlier export: choose a new folder",
                to.display()
            ))
        }
        _ => {}
    }
    copy(site, to)?;
    for (name, text) in FILES {
        let file = to.join(name);
        fs::write(&file, text).map_err(at(&file))?;
    }
    isolate(to, to)?;
    // The list of pages is long enough to have copies.
    compress::folder(to, &compress::formats_of(&site.join("index.html")))?;
    println!("{}: serve it as it is, over https", to.display());
    Ok(())
}

/// Has each page of a folder load the script first, which lies in `root`.
fn isolate(folder: &Path, root: &Path) -> Result<(), String> {
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let path = entry.map_err(at(folder))?.path();
        if path.is_dir() {
            isolate(&path, root)?;
        } else if path
            .extension()
            .is_some_and(|extension| extension == "html")
        {
            let depth = folder
                .strip_prefix(root)
                .map_or(0, |below| below.components().count());
            let text = fs::read_to_string(&path).map_err(at(&path))?;
            fs::write(&path, with_script(&text, depth)).map_err(at(&path))?;
            compress::remove_copies(&path)?;
        }
    }
    Ok(())
}

/// A page with the script, which is `depth` folders above it.
fn with_script(page: &str, depth: usize) -> String {
    let up = "../".repeat(depth);
    let script = format!("<head>\n    <script src=\"{up}{SCRIPT}\"></script>");
    page.replacen("<head>", &script, 1)
}

#[cfg(test)]
mod tests {
    use super::{export, with_script};
    use crate::compress;
    use std::fs;

    #[test]
    fn pages_load_the_script_first() {
        let page = with_script("<html><head>\n<title>T</title></head>", 2);
        assert_eq!(
            page,
            "<html><head>\n    <script src=\"../../isolation.js\"></script>\n<title>T</title></head>"
        );
    }

    /// Copies of pages contain the script too, or are not there.
    #[test]
    fn copies_are_those_of_the_exported_files() {
        let folder = std::env::temp_dir().join(format!("candle-copies-{}", std::process::id()));
        let (site, to) = (folder.join("site"), folder.join("to"));
        fs::create_dir_all(site.join("chat")).unwrap();
        let page = format!(
            "<html><head></head>{}</html>",
            "<p>A line.</p>\n".repeat(100)
        );
        for file in ["index.html", "chat/index.html", "chat/page.js"] {
            fs::write(site.join(file), &page).unwrap();
        }
        export(&site, &to).unwrap();
        assert!(compress::formats_of(&to.join("index.html")).is_empty());

        compress::folder(&site, &compress::FORMATS).unwrap();
        export(&site, &to).unwrap();
        for file in ["index.html", "chat/index.html", "chat/page.js"] {
            let mut bytes = Vec::new();
            let copy = fs::read(to.join(format!("{file}.br"))).unwrap();
            brotli::BrotliDecompress(&mut &copy[..], &mut bytes).unwrap();
            assert_eq!(bytes, fs::read(to.join(file)).unwrap(), "{file}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn other_folders_are_left_alone() {
        let folder = std::env::temp_dir().join(format!("candle-export-{}", std::process::id()));
        let (site, to) = (folder.join("site"), folder.join("to"));
        fs::create_dir_all(site.join("chat")).unwrap();
        assert!(export(&site, &to).unwrap_err().contains("cargo xtask web"));
        for page in ["index.html", "chat/index.html"] {
            fs::write(site.join(page), "<head></head>").unwrap();
        }
        fs::create_dir_all(&to).unwrap();
        fs::write(to.join("mine"), "").unwrap();
        assert!(export(&site, &to).unwrap_err().contains("not empty"));
        fs::remove_file(to.join("mine")).unwrap();
        export(&site, &to).unwrap();
        // Again, over the one before.
        export(&site, &to).unwrap();
        let page = fs::read_to_string(to.join("chat/index.html")).unwrap();
        assert!(page.contains("\"../isolation.js\""), "{page}");
        fs::remove_dir_all(folder).unwrap();
    }
}
