//! `candle:forest/random-forest`: trees and forests as a component without WASI.

use bindings::exports::candle::forest::random_forest::{self as forest, Guest};
use wasi_gpu_trees::{Model, Task};

mod bindings {
    #![allow(unsafe_code)]
    wit_bindgen::generate!({
        world: "library",
        path: "../wit/forest.wit",
        pub_export_macro: true,
    });
}

struct Component;

mod export {
    #![allow(unsafe_code)]
    use super::{bindings, Component};
    bindings::export!(Component with_types_in bindings);
}

impl Guest for Component {
    fn train(
        params: forest::Params,
        features: u32,
        data: Vec<f32>,
        labels: Vec<f32>,
    ) -> Result<forest::Trained, String> {
        let params = wasi_gpu_trees::Params {
            task: match params.task {
                forest::Task::Regression => Task::Regression,
                forest::Task::Classification => Task::Classification,
            },
            trees: params.trees,
            max_depth: params.max_depth,
            max_features: params.max_features,
            max_thresholds: params.max_thresholds,
            bootstrap: params.bootstrap,
            seed: params.seed,
        };
        let trained = wasi_gpu_trees::train(&params, features, &data, &labels).map_err(text)?;
        Ok(forest::Trained {
            model: trained.model.to_bytes(),
            reads: trained.reads,
            kernels: trained.kernels,
        })
    }

    fn predict(model: Vec<u8>, data: Vec<f32>) -> Result<Vec<f32>, String> {
        let model = Model::from_bytes(&model).map_err(text)?;
        wasi_gpu_trees::predict(&model, &data).map_err(text)
    }

    fn predict_by_average(model: Vec<u8>, data: Vec<f32>) -> Result<Vec<f32>, String> {
        let model = Model::from_bytes(&model).map_err(text)?;
        wasi_gpu_trees::predict_by_average(&model, &data).map_err(text)
    }
}

fn text(error: wasi_gpu_trees::Error) -> String {
    error.to_string()
}
