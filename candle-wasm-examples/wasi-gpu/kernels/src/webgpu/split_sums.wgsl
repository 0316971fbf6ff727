// find-split, 3: for each threshold and each slice of the rows, how many rows go left, and the sums of their values and squares. Values are
// about the node's mean. One more column, the last, has all rows.

struct Params {
  count: u32,
  // The first threshold, and how many.
  first: u32,
  thresholds: u32,
  // Tiles of SIZE rows in a slice.
  tiles: u32,
}

@group(0) @binding(0) var<storage, read> keys: array<u32>;
@group(0) @binding(1) var<storage, read> values: array<f32>;
@group(0) @binding(2) var<storage, read> mean: array<f32>;
@group(0) @binding(3) var<storage, read> thresholds: array<u32>;
// Three words for a column of a slice.
@group(0) @binding(4) var<storage, read_write> sums: array<u32>;
@group(0) @binding(5) var<uniform> p: Params;

// Sums are made in three levels, so that their rounding errors stay far below a millionth.
const RUN = 32u;

var<workgroup> tile_keys: array<u32, SIZE>;
var<workgroup> tile_values: array<f32, SIZE>;

@compute @workgroup_size(SIZE)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
  let column = group.x * SIZE + local;
  let slice = group.y + group.z * 32768u;
  var own = 0xffffffffu;
  if column < p.thresholds {
    own = threshold_key(thresholds[p.first + column]);
  }
  var left = 0u;
  var sum = vec2(0.0);
  for (var tile = 0u; tile < p.tiles; tile++) {
    let base = (slice * p.tiles + tile) * SIZE;
    if base >= p.count {
      break;
    }
    workgroupBarrier();
    if base + local < p.count {
      tile_keys[local] = keys[base + local];
      tile_values[local] = values[base + local] - mean[0];
    }
    workgroupBarrier();
    let end = min(SIZE, p.count - base);
    var of_tile = vec2(0.0);
    for (var run = 0u; run < end; run += RUN) {
      var of_run = vec2(0.0);
      for (var i = run; i < min(run + RUN, end); i++) {
        if tile_keys[i] <= own {
          let value = tile_values[i];
          left++;
          of_run += vec2(value, value * value);
        }
      }
      of_tile += of_run;
    }
    sum += of_tile;
  }
  if column <= p.thresholds && slice * p.tiles * SIZE < p.count {
    let at = (slice * (p.thresholds + 1u) + column) * 3u;
    sums[at] = left;
    sums[at + 1u] = bitcast<u32>(sum.x);
    sums[at + 2u] = bitcast<u32>(sum.y);
  }
}
