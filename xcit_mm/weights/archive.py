"""The zip archives of ``torch.save``: undamaged, or an error.

PyTorch reads them without looking at their checksums: a bit that a disk or a network flipped
would be loaded as a weight, and a record marked as a folder as whatever is in memory.
"""

from pathlib import Path
from zipfile import ZIP_STORED, BadZipFile, ZipFile

CHUNK = 2**20  # bytes
ENCRYPTED = 0x1  # a flag of a record
FOLDER = 0x10  # an attribute, for which PyTorch's reader leaves the memory as it was


def read_records(file: Path) -> dict[str, bytearray]:
    """Read every record of an archive, and compare it with its checksum.

    What is loaded is what was compared: PyTorch's reader could be led to another directory in the
    same file than Python's.

    A file written with ``torch.serialization.set_crc32_options(False)`` has zeros for
    checksums; its records are then as unprotected as those of other formats.

    Args:
        file: The archive, which is read once.

    Returns:
        The content of each record, by its name within the archive's one folder.

    Raises:
        BadZipFile: If it is damaged, or is not laid out as ``torch.save`` does it: each record
            once, as it is and not compressed, so that it takes no more memory than disk.
    """
    with ZipFile(file) as archive:
        records = archive.infolist()
        names = [record.filename for record in records]
        contents: dict[str, bytearray] = {}
        if len(set(names)) < len(names) or len({name.partition('/')[0] for name in names}) > 1:
            raise BadZipFile('its records are not each once in one folder')
        if sum(record.file_size for record in records) > file.stat().st_size:
            raise BadZipFile('its records are larger than the file')
        has_checksums = any(record.CRC for record in records)
        for record in records:
            stored = record.compress_type == ZIP_STORED and record.file_size == record.compress_size
            if not stored or record.flag_bits & ENCRYPTED or record.external_attr & FOLDER:
                raise BadZipFile(f'its record {record.filename} is not stored as it is')
            content = bytearray(record.file_size)
            with archive.open(record) as stream:
                if not has_checksums:
                    stream._expected_crc = None
                position = 0
                while chunk := stream.read(CHUNK):  # compares at the end
                    content[position : position + len(chunk)] = chunk
                    position += len(chunk)
            if position != record.file_size:
                raise BadZipFile(f'its record {record.filename} is cut off')
            contents[record.filename.partition('/')[2]] = content
    return contents
