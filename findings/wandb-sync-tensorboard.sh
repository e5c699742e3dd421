#!/bin/sh
# Package: wandb 0.31.0, with tensorboard 2.21.0 to write events.
# Guess: wandb sync --sync-tensorboard FOLDER uploads a folder of TensorBoard events, so that a program that writes such events
# needs no code of wandb's.
# Behavior: the option is gone, and the command ends at once, before it asks for a server. Plain wandb sync takes only folders of
# wandb's own runs.
# Seen:
#   Error: The following options have been removed: --sync-tensorboard. Downgrade to wandb<=0.29.0 to use them.
#   exit code 1
# Exit code 1: it behaves in another way now.
set -eu
seen=$(sed -n 's/^#   //p' "$0")
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check wandb==0.31.0 tensorboard==2.21.0
cd "$folder"
venv/bin/python - <<'PYTHON'
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter('events')
writer.add_event(Event(step=1, summary=Summary(value=[Summary.Value(tag='train/loss', simple_value=2.5)])))
writer.close()
PYTHON
code=0
HOME=$folder WANDB_MODE=offline venv/bin/wandb sync --sync-tensorboard events >found 2>&1 </dev/null || code=$?
echo "exit code $code" >>found
cat found
test "$(cat found)" = "$seen"
