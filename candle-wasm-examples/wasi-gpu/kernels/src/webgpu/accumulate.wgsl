// matmul's end: alpha · product + beta · C. With beta 0, C is not read.

struct Params {
  // The part of C that the product belongs to.
  first: u32,
  count: u32,
  alpha: f32,
  beta: f32,
  // 1: there is a product. 2: C is read.
  reads: u32,
}

@group(0) @binding(0) var<storage, read> product: array<f32>;
@group(0) @binding(1) var<storage, read_write> c: array<f32>;
@group(0) @binding(2) var<uniform> p: Params;

@compute @workgroup_size(SIZE)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let i = flat(group, groups) * SIZE + local;
  if i >= p.count {
    return;
  }
  var value = 0.0;
  if (p.reads & 1u) != 0u {
    value = p.alpha * product[i];
  }
  if (p.reads & 2u) != 0u {
    value += p.beta * c[p.first + i];
  }
  c[p.first + i] = value;
}
