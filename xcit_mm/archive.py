"""The zip archives of ``torch.save``: undamaged, or an error.

PyTorch reads them without looking at their checksums: a bit that a disk or a network flipped
would be loaded as a weight, and a record marked as a folder as whatever is in memory.
"""

from pathlib import Path
from zipfile import ZIP_STORED, BadZipFile, ZipFile

CHUNK = 2**20  # bytes
ENCRYPTED = 0x1  # a flag of a record
FOLDER = 0x10  # an attribute, for which PyTorch's reader leaves the memory as it was


def verified_sizes(file: Path) -> dict[str, int]:
    """Compare every record of an archive with its checksum.

    A file written with ``torch.serialization.set_crc32_options(False)`` has zeros for
    checksums; its records are then as unprotected as those of other formats.

    Args:
        file: The archive, which is read once.

    Returns:
        The size of each record in bytes, by its name within the archive's one folder.

    Raises:
        BadZipFile: If it is damaged, or is not laid out as ``torch.save`` does it: each record
            once, as it is and not compressed, so that it takes no more memory than disk.
    """
    with ZipFile(file) as archive:
        records = archive.infolist()
        names = [record.filename for record in records]
        sizes = {record.filename.partition('/')[2]: record.file_size for record in records}
        if len(sizes) < len(records) or len({name.partition('/')[0] for name in names}) > 1:
            raise BadZipFile('its records are not each once in one folder')
        if sum(sizes.values()) > file.stat().st_size:
            raise BadZipFile('its records are larger than the file')
        has_checksums = any(record.CRC for record in records)
        for record in records:
            stored = record.compress_type == ZIP_STORED and record.file_size == record.compress_size
            if not stored or record.flag_bits & ENCRYPTED or record.external_attr & FOLDER:
                raise BadZipFile(f'its record {record.filename} is not stored as it is')
            with archive.open(record) as stream:
                if has_checksums:
                    while stream.read(CHUNK):  # compares at the end
                        pass
    return sizes
