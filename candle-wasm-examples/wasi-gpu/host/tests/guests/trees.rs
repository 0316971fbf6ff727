//! Single trees: every row as scikit-learn has it.

use serde::Deserialize;
use wasi_gpu::DeviceChoice;

use crate::{difference, fixture, on_devices, predict, start, train, Data, Params};

#[derive(Deserialize)]
struct Trees {
    depths: Vec<Depth>,
}

#[derive(Deserialize)]
struct Depth {
    depth: u32,
    variants: Vec<Variant>,
}

/// The results for some random states, which break ties between features differently.
#[derive(Deserialize)]
struct Variant {
    /// The leaf of each row.
    leaf: Vec<usize>,
    /// The values of each leaf, one per output.
    values: Vec<Vec<f32>>,
}

/// Accuracy would not show rows that went astray: each prediction is compared.
async fn equal_scikit_learn(choice: DeviceChoice, name: &str) {
    let data = Data::load(&format!("data-{name}.json"));
    let trees: Trees = fixture(&format!("trees-{name}.json"));
    assert_eq!(trees.depths.len(), 5);
    let mut guest = start("forest", choice).await;
    for Depth { depth, variants } in trees.depths {
        let params = Params {
            trees: 1,
            max_depth: depth,
            max_features: data.features as u32,
            bootstrap: false,
            seed: 0,
        };
        let (model, _) = train(&mut guest, params, &data).await;
        let predictions = predict(&mut guest, "predict", &model, &data).await;
        let differences = variants.iter().map(|variant| {
            let rows = variant
                .leaf
                .iter()
                .flat_map(|leaf| variant.values[*leaf].clone());
            difference(&predictions, &rows.collect::<Vec<_>>())
        });
        let least = differences.fold(f32::INFINITY, f32::min);
        assert!(
            least <= 1e-5,
            "{name}, depth {depth}: the nearest of scikit-learn's {} trees differs by {least}",
            variants.len()
        );
    }
}

async fn diabetes(choice: DeviceChoice) {
    equal_scikit_learn(choice, "diabetes").await;
}

async fn iris(choice: DeviceChoice) {
    equal_scikit_learn(choice, "iris").await;
}

async fn breast_cancer(choice: DeviceChoice) {
    equal_scikit_learn(choice, "breast-cancer").await;
}

async fn digits(choice: DeviceChoice) {
    equal_scikit_learn(choice, "digits").await;
}

on_devices!(diabetes, iris, breast_cancer, digits);
