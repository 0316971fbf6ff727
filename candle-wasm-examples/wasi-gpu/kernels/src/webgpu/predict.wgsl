// batch-predict, 1: walks down trees. An invocation has a sample and a block of trees; it writes the sum of the leaves' values. If a walk
// may be longer than a dispatch allows, a block is one tree, and the next dispatch continues.

struct Params {
  first_sample: u32,
  samples: u32,
  features: u32,
  first_tree: u32,
  trees: u32,
  block: u32,
  nodes: u32,
  depth: u32,
  // Steps done by earlier dispatches, and how many this one does.
  done: u32,
  turns: u32,
  invocations: u32,
}

@group(0) @binding(0) var<storage, read> samples: array<u32>;
@group(0) @binding(1) var<storage, read> nodes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> offsets: array<u32>;
// The node to go on from, or DONE; and the sum.
@group(0) @binding(3) var<storage, read_write> state: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read_write> status: array<atomic<u32>>;
@group(0) @binding(5) var<uniform> p: Params;

const DONE = 0xffffffffu;
const LEAF = 0xffffffffu;
const NAN = 0x7fc00000u;

@compute @workgroup_size(SIZE)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let id = flat(group, groups) * SIZE + local;
  if id >= p.invocations {
    return;
  }
  let sample = p.first_sample + id % p.samples;
  let first = p.first_tree + (id / p.samples) * p.block;
  let end = min(first + p.block, p.first_tree + p.trees);
  var node = 0u;
  if p.done > 0u {
    node = state[id].x;
    if node == DONE {
      return;
    }
  }
  var sum = 0.0;
  for (var tree = first; tree < end; tree++) {
    let root = offsets[tree];
    var leaf = NAN;
    var arrived = false;
    if root >= p.nodes {
      report(2u, tree, root, p.nodes);
      arrived = true;
    }
    for (var turn = 0u; turn < p.turns && !arrived; turn++) {
      let here = nodes[root + node];
      if here.x == LEAF {
        leaf = here.y;
        arrived = true;
        break;
      }
      if p.done + turn == p.depth {
        report(5u, tree, sample, node);
        arrived = true;
        break;
      }
      if here.x >= p.features {
        report(4u, tree, sample, here.x);
        arrived = true;
        break;
      }
      let value = samples[sample * p.features + here.x];
      let child = select(here.w, here.z, key(value) <= threshold_key(here.y));
      if child >= p.nodes - root {
        report(3u, tree, sample, child);
        arrived = true;
        break;
      }
      node = child;
    }
    if !arrived {
      state[id] = vec2(node, 0u);
      return;
    }
    sum += bitcast<f32>(leaf);
    node = 0u;
  }
  state[id] = vec2(DONE, bitcast<u32>(sum));
}
