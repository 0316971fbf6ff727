use candle_transformers::object_detection::{
    iou, non_maximum_suppression, soft_non_maximum_suppression, Bbox,
};

/// A box of 10 by 10 pixels; its data is its index among the boxes.
fn square(xmin: f32, confidence: f32, data: usize) -> Bbox<usize> {
    Bbox {
        xmin,
        ymin: 0.,
        xmax: xmin + 9.,
        ymax: 9.,
        confidence,
        data,
    }
}

fn ids(boxes: &[Bbox<usize>]) -> Vec<usize> {
    boxes.iter().map(|bbox| bbox.data).collect()
}

#[test]
fn overlap_is_a_share_of_the_union() {
    for (shift, expected) in [(0., 1.), (2., 80. / 120.), (9., 10. / 190.), (10., 0.)] {
        let (a, b) = (square(3., 0., 0), square(3. + shift, 0., 1));
        assert_eq!(iou(&a, &b), expected);
        assert_eq!(iou(&b, &a), expected);
    }
}

#[test]
fn the_most_confident_of_overlapping_boxes_stays() {
    // 0 hides 2, which would have hidden 3; another class is another matter.
    let boxes = vec![
        square(0., 0.9, 0),
        square(100., 0.5, 1),
        square(3., 0.8, 2),
        square(6., 0.7, 3),
    ];
    let mut classes = [boxes, vec![square(0., 0.1, 4)], vec![]];
    non_maximum_suppression(&mut classes, 0.5);
    assert_eq!(ids(&classes[0]), [0, 3, 1]);
    assert_eq!(ids(&classes[1]), [4]);
    assert!(classes[2].is_empty());
}

#[test]
fn equal_and_unknown_confidences_do_no_harm() {
    let mut classes = [vec![
        square(0., f32::NAN, 0),
        square(50., 0.5, 1),
        square(100., 0.5, 2),
        square(150., f32::NEG_INFINITY, 3),
    ]];
    non_maximum_suppression(&mut classes, 0.5);
    assert_eq!(ids(&classes[0]), [1, 2, 3, 0]);
    soft_non_maximum_suppression(&mut classes, None, None, None);
    assert_eq!(ids(&classes[0]), [1, 2, 3, 0]);
}

#[test]
fn overlapping_boxes_lose_confidence() {
    let decay = |iou: f32, sigma: f32| (-iou * iou / sigma).exp();
    let boxes = vec![
        square(2., 0.8, 1),
        square(0., 0.9, 0),
        square(3., 0.5, 2),
        square(50., 0.05, 3),
        square(50., 0.3, 4),
    ];
    let mut classes = [boxes.clone()];
    soft_non_maximum_suppression(&mut classes, None, None, None);
    assert_eq!(ids(&classes[0]), [0, 1, 2, 4, 3]);
    let got: Vec<f32> = classes[0].iter().map(|bbox| bbox.confidence).collect();
    let (near, next) = (80. / 120., 90. / 110.);
    // Box 2 overlaps 0 and 1: 1, the less confident, counts. The last is below the threshold even before its decay.
    assert_eq!(
        got,
        [0.9, 0.8 * decay(near, 0.5), 0.5 * decay(next, 0.5), 0.3, 0.]
    );

    let mut classes = [boxes];
    soft_non_maximum_suppression(&mut classes, Some(0.7), Some(0.), Some(1.));
    let got: Vec<f32> = classes[0].iter().map(|bbox| bbox.confidence).collect();
    let last = 0.05 * decay(1., 1.);
    assert_eq!(got, [0.9, 0.8, 0.5 * decay(next, 1.), 0.3, last]);
}
