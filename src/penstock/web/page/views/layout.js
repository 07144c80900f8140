// Where the tasks of a graph stand. The server says in which layer a task stands: behind all tasks that send to it. An
// exchange that skips layers passes through places that are kept free for it, so that no arrow runs behind a task.

const SWEEPS = 4;
const PASSAGE = 0.35; // how much of the room of a task an arrow that passes by takes

/** Nodes with `x` and `y`, edges with a `path` and the place of their label, and the size of the whole. */
export function placed(vertices, edges, shape) {
  const columns = layered(vertices, edges);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) untangle(columns, sweep % 2 === 0);
  const across = (item) => (item.isPassage ? PASSAGE : 1) * (shape.isDownwards ? shape.width : shape.height);
  const extents = columns.map((column) => column.reduce((sum, item) => sum + across(item) + shape.across, -shape.across));
  const widest = Math.max(...extents);
  const step = (shape.isDownwards ? shape.height : shape.width) + shape.along;
  columns.forEach((column, layer) => {
    let at = (widest - extents[layer]) / 2;
    for (const item of column) {
      const along = layer * step;
      [item.x, item.y] = shape.isDownwards ? [at, along] : [along, at];
      [item.width, item.height] = shape.isDownwards ? [across(item), shape.height] : [shape.width, across(item)];
      at += across(item) + shape.across;
    }
  });
  const items = columns.flat();
  const longest = columns.length * step - shape.along;
  return {
    nodes: items.filter((item) => !item.isPassage).map((item) => ({ ...item.vertex, x: item.x, y: item.y })),
    edges: edges.map((edge) => drawn(edge, items, shape)),
    width: shape.isDownwards ? widest : longest,
    height: shape.isDownwards ? longest : widest,
  };
}

function layered(vertices, edges) {
  const columns = [];
  const put = (layer, item) => (columns[layer] ??= []).push(item);
  const items = new Map();
  for (const vertex of vertices) {
    const item = { id: vertex.id, vertex, order: vertex.row, before: [], after: [], isPassage: false };
    items.set(vertex.id, item);
    put(vertex.layer, item);
  }
  for (const edge of edges) {
    const target = items.get(edge.to);
    let last = items.get(edge.from);
    for (let layer = last.vertex.layer + 1; layer < target.vertex.layer; layer += 1) {
      const passage = { id: `${edge.number}/${layer}`, edge: edge.number, order: last.order, before: [], after: [], isPassage: true };
      put(layer, passage);
      last = joined(last, passage);
    }
    joined(last, target);
  }
  columns.forEach((column) => column.sort((one, other) => one.order - other.order));
  return columns;
}

function joined(upstream, downstream) {
  upstream.after.push(downstream);
  downstream.before.push(upstream);
  return downstream;
}

/** Move every task towards the middle of its neighbours, which takes most crossings away. */
function untangle(columns, isForwards) {
  const ordered = isForwards ? columns : columns.toReversed();
  for (const column of ordered) {
    column.forEach((item, place) => (item.place = place / Math.max(1, column.length - 1)));
    for (const item of column) {
      const neighbours = isForwards ? item.before : item.after;
      if (neighbours.length > 0) item.place = neighbours.reduce((sum, each) => sum + each.place, 0) / neighbours.length;
    }
    column.sort((one, other) => one.place - other.place);
    column.forEach((item, place) => (item.place = column.length === 1 ? 0.5 : place / (column.length - 1)));
  }
}

function drawn(edge, items, shape) {
  const from = items.find((item) => item.id === edge.from);
  const target = items.find((item) => item.id === edge.to);
  const passages = items.filter((item) => item.edge === edge.number && item.isPassage);
  const points = [leaving(from, shape, portOf(from.after.indexOf(passages[0] ?? target), from.after.length))];
  for (const passage of passages) points.push(entering(passage, shape, 0.5), leaving(passage, shape, 0.5));
  points.push(entering(target, shape, portOf(target.before.indexOf(passages.at(-1) ?? from), target.before.length)));
  const parts = [`M${points[0].join(" ")}`];
  for (let place = 1; place < points.length; place += 1) {
    const [x0, y0] = points[place - 1];
    const [x1, y1] = points[place];
    if (place % 2 === 0) parts.push(`L${x1} ${y1}`);
    else if (shape.isDownwards) parts.push(`C${x0} ${(y0 + y1) / 2} ${x1} ${(y0 + y1) / 2} ${x1} ${y1}`);
    else parts.push(`C${(x0 + x1) / 2} ${y0} ${(x0 + x1) / 2} ${y1} ${x1} ${y1}`);
  }
  // Arrows meet at their ends: the label stands where an arrow is alone, nearer to the side with more room.
  const [first, second] = target.before.length > 1 ? [points[0], points[1]] : [points.at(-2), points.at(-1)];
  return { ...edge, path: parts.join(""), labelX: (first[0] + second[0]) / 2, labelY: (first[1] + second[1]) / 2 };
}

/** Where along its side a task's arrow begins or ends, if it has several. */
const portOf = (place, count) => (Math.max(0, place) + 1) / (count + 1);

const entering = (item, shape, port) => (shape.isDownwards ? [item.x + item.width * port, item.y] : [item.x, item.y + item.height * port]);
const leaving = (item, shape, port) =>
  shape.isDownwards ? [item.x + item.width * port, item.y + item.height] : [item.x + item.width, item.y + item.height * port];
